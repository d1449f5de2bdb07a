//! Flood protection for HTTP/2 frames other than requests and bodies. Such a frame costs its sender nine
//! bytes, but costs the server a pass through its state machine. The server therefore counts these frames,
//! and ends a connection that floods it.

use std::time::Duration;

use tokio::time::Instant;

/// Scans a connection's bytes for frame headers; payloads are skipped by length.
#[derive(Debug)]
pub(crate) struct Frames {
    /// Number of bytes of the preface or of a frame's payload that are still to be skipped.
    skipped: usize,
    header: [u8; HEADER],
    header_len: usize,
    patience: Patience,
}

/// The reason why a connection ends: the client sent more frames without content than a well-behaved client
/// would.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Flood;

const PREFACE: usize = 24;
const HEADER: usize = 9;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const END_STREAM: u8 = 1;

/// Minimum payload, in bytes, of a DATA frame that does not count as empty. The shortest request is longer.
const LITTLE_DATA: usize = 16;

impl Frames {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            skipped: PREFACE,
            header: [0; HEADER],
            header_len: 0,
            patience: Patience::new(now),
        }
    }

    /// Scans the bytes that were just read, and returns how many frames start in them.
    pub(crate) fn read(&mut self, mut bytes: &[u8], now: impl FnOnce() -> Instant) -> Result<usize, Flood> {
        let (mut frames, mut price) = (0, 0);
        loop {
            let passed = self.skipped.min(bytes.len());
            self.skipped -= passed;
            bytes = &bytes[passed..];
            let of_header = bytes.len().min(HEADER - self.header_len);
            self.header[self.header_len..self.header_len + of_header].copy_from_slice(&bytes[..of_header]);
            self.header_len += of_header;
            bytes = &bytes[of_header..];
            if self.header_len < HEADER {
                break;
            }
            let [a, b, c, kind, flags, ..] = self.header;
            let payload = u32::from_be_bytes([0, a, b, c]) as usize;
            self.header_len = 0;
            self.skipped = payload;
            frames += 1;
            price += match kind {
                DATA if payload < LITTLE_DATA && flags & END_STREAM == 0 => 1,
                DATA => 0,
                // A request earns two tokens, because its client sends a few window updates for the response.
                HEADERS => -2,
                // Processing a cancelled request costs more than reading the frame.
                RST_STREAM => 4,
                _ => 1,
            };
        }
        // Most reads contain only a request and its body.
        match price {
            ..=0 => self.patience.earn(i64::from(-price)),
            _ => self.patience.spend(i64::from(price), now)?,
        }
        Ok(frames)
    }

    /// Credits response bytes that were written: clients acknowledge them with window updates.
    pub(crate) fn written(&mut self, bytes: usize) {
        self.patience.earn_bytes(bytes);
    }
}

/// A token bucket: the number of empty frames that the client may still send. Unlike `TokenBucket` of
/// `oip-resources`, which this crate does not use, it also earns tokens with response bytes, and reads the
/// clock only when it is empty.
#[derive(Debug)]
struct Patience {
    left: i64,
    since: Instant,
    /// Response bytes not yet converted to tokens.
    bytes: usize,
}

impl Patience {
    /// Capacity of the bucket.
    const MOST: i64 = 10_000;
    /// Tokens added per second.
    const PER_SECOND: i64 = 1000;
    /// Response bytes per token.
    const BYTES: usize = 256;

    fn new(now: Instant) -> Self {
        Self {
            left: Self::MOST,
            since: now,
            bytes: 0,
        }
    }

    fn earn(&mut self, frames: i64) {
        self.left = (self.left + frames).min(Self::MOST);
    }

    fn earn_bytes(&mut self, bytes: usize) {
        self.bytes += bytes;
        let frames = self.bytes / Self::BYTES;
        self.bytes %= Self::BYTES;
        self.earn(i64::try_from(frames).unwrap_or(Self::MOST).min(Self::MOST));
    }

    fn spend(&mut self, frames: i64, now: impl FnOnce() -> Instant) -> Result<(), Flood> {
        self.left -= frames;
        if self.left < 0 {
            // The clock is read only when the bucket is empty.
            let now = now();
            let elapsed = now
                .saturating_duration_since(self.since)
                .min(Duration::from_secs(3600));
            self.since = now;
            let earned = elapsed.as_micros() as i64 * Self::PER_SECOND / 1_000_000;
            self.earn(earned);
        }
        if self.left < 0 { Err(Flood) } else { Ok(()) }
    }
}

/// A GOAWAY frame with `ENHANCE_YOUR_CALM`, which tells a client why its connection is being closed.
pub(crate) const GO_AWAY: [u8; 17] = [
    0, 0, 8, 7, 0, 0, 0, 0, 0, // the frame's header
    0x7f, 0xff, 0xff, 0xff, // any stream may have been processed
    0, 0, 0, 0xb, // ENHANCE_YOUR_CALM
];

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, payload: usize) -> Vec<u8> {
        let mut frame = (payload as u32).to_be_bytes()[1..].to_vec();
        frame.extend_from_slice(&[kind, flags, 0, 0, 0, 1]);
        frame.resize(HEADER + payload, 0xff);
        frame
    }

    fn opened(now: Instant) -> Frames {
        let mut frames = Frames::new(now);
        assert_eq!(frames.read(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", || now), Ok(0));
        frames
    }

    #[test]
    fn frames_are_found_however_they_are_cut() {
        let now = Instant::now();
        let bytes: Vec<u8> = [0, 7, 300, 70_000, 1]
            .iter()
            .flat_map(|payload| frame(DATA, END_STREAM, *payload))
            .collect();
        for size in [1, 2, 8, 9, 10, 300, bytes.len()] {
            let mut frames = opened(now);
            let found: usize = bytes
                .chunks(size)
                .map(|chunk| frames.read(chunk, || now).unwrap())
                .sum();
            assert_eq!(found, 5, "chunks of {size}");
            assert_eq!((frames.skipped, frames.header_len), (0, 0));
        }
    }

    #[test]
    fn floods_end_and_time_and_answers_are_worth_frames() {
        const SETTINGS: u8 = 4;
        const PING: u8 = 6;
        for (kind, payload, most) in [
            (SETTINGS, 0, 10_000),
            (PING, 8, 10_000),
            (RST_STREAM, 4, 2500),
            (DATA, 1, 10_000),
        ] {
            let now = Instant::now();
            let (mut frames, piece) = (opened(now), frame(kind, 0, payload));
            for number in 0..most {
                assert_eq!(
                    frames.read(&piece, || now),
                    Ok(1),
                    "frame {number} of type {kind}"
                );
            }
            assert_eq!(frames.read(&piece, || now), Err(Flood), "frames of type {kind}");
            // After a second there are new tokens.
            let later = || now + Duration::from_secs(1);
            assert_eq!(frames.read(&piece, later), Ok(1));
            // 1 MiB of responses is worth 4096 tokens.
            frames.written(1 << 20);
            for _ in 0..1000 {
                assert_eq!(frames.read(&piece, later), Ok(1));
            }
        }
    }

    #[test]
    fn requests_and_bodies_are_no_flood() {
        let now = Instant::now();
        let mut frames = opened(now);
        let window_update = frame(8, 0, 4);
        let call = [
            frame(HEADERS, 4, 100),
            frame(DATA, END_STREAM, 20),
            window_update.clone(),
            window_update,
        ]
        .concat();
        for _ in 0..100_000 {
            assert!(frames.read(&call, || now).is_ok());
        }
        let large = frame(DATA, 0, 16 << 10);
        for _ in 0..100_000 {
            assert!(frames.read(&large, || now).is_ok());
        }
    }
}
