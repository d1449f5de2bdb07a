//! The scale of attacks: the server's limits and the number of attackers.

/// The server's limits and the number of attacking clients.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// The server's `--max-request-size` in bytes.
    pub request: usize,
    /// The server's `--memory-budget` in bytes.
    pub budget: usize,
    /// Number of clients that read slowly, or not at all.
    pub readers: usize,
    /// Number of clients that send compressed bodies.
    pub crowd: usize,
}

impl Scale {
    /// The limits of a server with default options.
    pub const FULL: Self = Self {
        request: 64 << 20,
        budget: 512 << 20,
        readers: 60,
        crowd: 300,
    };

    /// An eighth of the defaults, for tests.
    pub const SMALL: Self = Self {
        request: 8 << 20,
        budget: 64 << 20,
        readers: 60,
        crowd: 100,
    };

    /// Returns the server options for these limits.
    #[must_use]
    pub fn options(&self) -> [String; 6] {
        [
            "--max-request-size".to_owned(),
            self.request.to_string(),
            "--max-answer-size".to_owned(),
            self.request.to_string(),
            "--memory-budget".to_owned(),
            self.budget.to_string(),
        ]
    }

    /// Returns the maximum memory that the server may use above its idle level.
    #[must_use]
    pub fn bound(&self) -> usize {
        self.budget + self.budget / 4 + (64 << 20)
    }
}
