//! The runtimes on which transports run, and their threads.

use oip_listen::Lanes;
use tokio::runtime::{Builder, Handle, Runtime};

use crate::{failure::Failure, in_place::transport_threads, options::AddressProtocol};

/// The runtimes of the transports.
pub(super) struct Runtimes {
    /// One thread, which accepts connections and responds to health checks.
    pub(super) front: Runtime,
    /// The lane for connections with requests. Models with short runs also run on its threads.
    pub(super) work: Runtime,
    /// The lane for connections that keep a thread busy, with a lower priority.
    busy: Runtime,
}

impl Runtimes {
    /// Starts the threads.
    pub(super) fn start() -> Result<Self, Failure> {
        Ok(Self {
            front: threads(Builder::new_multi_thread().thread_name("front").worker_threads(1))?,
            work: threads(lane().thread_name("io"))?,
            busy: threads(lane().thread_name("busy-io").on_thread_start(give_way))?,
        })
    }

    /// Returns the lanes to which connections move from the runtime that accepts them.
    pub(super) fn lanes(&self) -> Lanes {
        let lanes = Lanes::new(self.work.handle().clone(), self.busy.handle().clone());
        self.front.spawn(lanes.clone().keep_awake());
        lanes
    }

    /// Returns the runtime that accepts connections of a protocol. gRPC connections are accepted on the lane
    /// on which they stay.
    pub(super) fn accepting(&self, protocol: AddressProtocol) -> &Handle {
        match protocol {
            AddressProtocol::Grpc => self.work.handle(),
            AddressProtocol::Http | AddressProtocol::Both => self.front.handle(),
        }
    }

    /// Shuts down without waiting for threads: a hanging or idle thread must not keep the process alive, even
    /// after a startup failure.
    pub(super) fn end(self) {
        for runtime in [self.front, self.work, self.busy] {
            runtime.shutdown_background();
        }
    }
}

/// Creates the runtime of a lane for connections with requests.
fn lane() -> Builder {
    let mut builder = Builder::new_multi_thread();
    builder
        .worker_threads(transport_threads())
        .thread_stack_size(MODEL_STACK);
    builder
}

/// Stack size of threads that run models, as for the engine's threads. Only pages that are touched take
/// memory.
const MODEL_STACK: usize = 16 << 20;

fn threads(builder: &mut Builder) -> Result<Runtime, Failure> {
    let runtime = builder.enable_all().build();
    runtime.map_err(|error| Failure::run(format!("cannot start threads: {error}")))
}

/// Lowers the priority of the current thread (on Linux; elsewhere of the process).
fn give_way() {
    #[cfg(target_os = "linux")]
    let _ = rustix::process::nice(5);
}
