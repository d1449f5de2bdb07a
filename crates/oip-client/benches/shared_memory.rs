//! Measures the cost of sending tensors to a server on the same machine and back over a Unix socket, with and
//! without shared memory: CPU time of both sides, and latency.
//!
//! `cargo bench -p oip-client --bench shared_memory`. The server is a separate process with an identity
//! model.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark fails by panicking and prints its figures"
)]

#[cfg(target_os = "linux")]
fn main() {
    linux::main();
}

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("memory is shared on Linux only");
}

#[cfg(target_os = "linux")]
mod linux {
    use std::{
        env, fs,
        path::Path,
        process::{Child, Command},
        sync::Arc,
        thread::sleep,
        time::{Duration, Instant},
    };

    use http::Extensions;
    use oip_client::{BlockingClient, HttpClient, InferenceClient, Patience};
    use oip_http::{HttpConfig, REGISTER_CONNECTION_MEMORY};
    use oip_listen::{ConnectionLimits, Descriptors, Protocol, Shutdown, listen_unix, serve};
    use oip_resources::ConnectionRegion;
    use oip_service::testing::TestService;
    use oip_shm::ConnectionRegions;
    use oip_types::{InferRequest, ModelRef};
    use tensor_core::{Shape, Tensor};

    /// Environment variable that turns a process into the server; its value is the directory to listen in.
    const FOLDER: &str = "OIP_BENCH_SHARED_MEMORY";

    /// Number of rounds per row of the output. A row shows their median.
    const ROUNDS: usize = 5;

    /// Approximate total duration of a round's requests.
    const ROUND: Duration = Duration::from_secs(1);

    pub(super) fn main() {
        if let Some(folder) = env::var_os(FOLDER) {
            return serve_both(Path::new(&folder));
        }
        let folder = tempfile::tempdir().unwrap();
        let server = Server(
            Command::new(env::current_exe().unwrap())
                .env(FOLDER, folder.path())
                .spawn()
                .unwrap(),
        );
        while !folder.path().join("grpc-without").exists() {
            sleep(Duration::from_millis(10));
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        println!(
            "us for each request, there and back: elapsed / processor time of the client / of the server"
        );
        println!(
            "{:>10}  {:<9} {:>28} {:>28}",
            "bytes", "calls", "shared memory", "socket"
        );
        for kib in [16, 32, 64, 128, 256, 1 << 10, 16 << 10] {
            let value = Tensor::from_vec(Shape::vector(kib << 8), vec![1.5f32; (kib as usize) << 8]).unwrap();
            let model = ModelRef::new("identity_fp32", None).unwrap();
            let request = InferRequest::new(model).with_input("x", value);
            let urls =
                ["with", "without"].map(|name| format!("unix://{}", folder.path().join(name).display()));
            let [with, without] = urls
                .clone()
                .map(|url| HttpClient::builder(url).build_blocking().unwrap());
            row(
                &server,
                kib,
                "blocking",
                [&|| block(&with, &request), &|| block(&without, &request)],
            );
            let grpc_urls = ["grpc-with", "grpc-without"]
                .map(|name| format!("grpc+unix://{}", folder.path().join(name).display()));
            for (urls, calls) in [(urls, "async"), (grpc_urls, "gRPC")] {
                let [with, without] = urls.map(|url| {
                    let _context = runtime.enter();
                    oip_client::builder(url).build().unwrap()
                });
                let ask = |client: &dyn InferenceClient| {
                    let response = runtime.block_on(client.infer(&request)).unwrap();
                    assert_eq!(response.outputs[0].value, request.inputs[0].value);
                };
                row(&server, kib, calls, [&|| ask(&*with), &|| ask(&*without)]);
            }
        }
    }

    fn block(client: &BlockingClient, request: &InferRequest) {
        let call = |client: HttpClient| async move { client.infer(request).await };
        let response = client.call(Patience::default(), call).unwrap();
        assert_eq!(response.outputs[0].value, request.inputs[0].value);
    }

    /// Measures the two calls in `ways` alternately, round by round, and prints their medians.
    fn row(server: &Server, kib: u64, calls: &str, ways: [&dyn Fn(); 2]) {
        let mut found = [Vec::new(), Vec::new()];
        let counts = ways.map(|ask| {
            (0..3).for_each(|_| ask());
            let start = Instant::now();
            (0..5).for_each(|_| ask());
            (ROUND.as_nanos() * 5 / start.elapsed().as_nanos().max(1)).clamp(20, 20_000) as u32
        });
        for _ in 0..ROUNDS {
            for ((ask, count), found) in ways.iter().zip(counts).zip(&mut found) {
                let (start, ours, theirs) = (Instant::now(), processor_time("self"), server.processor_time());
                (0..count).for_each(|_| ask());
                let spent = [
                    start.elapsed(),
                    processor_time("self") - ours,
                    server.processor_time() - theirs,
                ];
                found.push(spent.map(|spent| spent / count));
            }
        }
        let shown = found.map(|rounds| {
            let of = |index: usize| {
                let mut times: Vec<Duration> = rounds.iter().map(|round| round[index]).collect();
                times.sort();
                times[times.len() / 2].as_micros()
            };
            format!("{} / {} / {}", of(0), of(1), of(2))
        });
        println!("{:>6} KiB  {calls:<9} {:>28} {:>28}", kib, shown[0], shown[1]);
    }

    struct Server(Child);

    impl Server {
        fn processor_time(&self) -> Duration {
            processor_time(&self.0.id().to_string())
        }
    }

    impl Drop for Server {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// Returns the CPU time of all threads of a process, with a resolution of 10 ms.
    fn processor_time(process: &str) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
        let fields = stat.rsplit(") ").next().unwrap().split(' ').skip(11).take(2);
        Duration::from_millis(fields.map(|ticks| ticks.parse::<u64>().unwrap() * 10).sum())
    }

    fn serve_both(folder: &Path) {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let config = HttpConfig::default();
            let with = config.clone().with(|config| {
                let regions = ConnectionRegions::new(&config.budget, 64 << 20);
                config.connection_memory = Some(Arc::new(regions));
            });
            const PATHS: &[&str] = &[REGISTER_CONNECTION_MEMORY, oip_grpc::REGISTER_CONNECTION_MEMORY];
            let descriptors = Descriptors::new(PATHS, |descriptor| {
                let mut extensions = Extensions::new();
                extensions.insert(ConnectionRegion::new(descriptor));
                extensions
            });
            let limits = ConnectionLimits::default();
            let receiving = limits
                .clone()
                .with(|limits| limits.descriptors = Some(descriptors));
            let listen = |name: &str| listen_unix(&folder.join(name), 0o600).unwrap();
            let service = Arc::new(TestService::plain());
            let mut serving = Vec::new();
            for (name, config, limits) in [("with", with, receiving), ("without", config, limits)] {
                let grpc = oip_grpc::GrpcConfig::default().with(|grpc| {
                    grpc.connection_memory = config.connection_memory.clone();
                });
                let app = oip_http::service(service.clone(), config);
                let http = serve(
                    listen(name),
                    Protocol::Http1,
                    app,
                    limits.clone(),
                    Shutdown::new(),
                );
                serving.push(tokio::spawn(http));
                let listener = listen(&format!("grpc-{name}"));
                let app = oip_grpc::service(service.clone(), grpc);
                let grpc = serve(listener, Protocol::Http2, app, limits, Shutdown::new());
                serving.push(tokio::spawn(grpc));
            }
            for served in serving {
                served.await.unwrap();
            }
        });
    }
}
