//! A host, served until the program is asked to end.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use strata_engine::EngineError;
use strata_engine::host::Host;
use tokio::runtime::Builder;
use tokio::sync::oneshot;

use crate::listen::serve;
use crate::model::Model;
use crate::record::note;
use crate::server::{ServerOptions, router};

/// Threads for connections: the model needs the processors.
const THREADS: usize = 2;
/// Threads that make prompts, and the one that ends the host.
const BLOCKING_THREADS: usize = 8;
/// How long clients may take to read the last words, after all requests have ended.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// Serves a host until Ctrl-C, or until the system asks the program to end: then requests at work may go on for `grace`.
/// Asked a second time, the program ends at once, with the exit code `exit_code_at_once`.
///
/// # Errors
/// When the system gives no threads or does not let connections be taken. Of the host: when something could not be kept.
pub fn run(
    host: &Arc<Host>,
    listener: TcpListener,
    options: ServerOptions,
    grace: Duration,
    exit_code_at_once: i32,
) -> io::Result<Result<(), EngineError>> {
    let runtime = Builder::new_multi_thread()
        .worker_threads(THREADS)
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_name("strata-http")
        .enable_all()
        .build()?;
    let closed = runtime.block_on(async {
        listener.set_nonblocking(true)?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let mut asked_to_end = Signals::new()?;
        let head_time = options.arrival_time;
        let (stop, stopped) = oneshot::channel::<()>();
        let stopped = async { _ = stopped.await };
        let served = tokio::spawn(serve(listener, router(Model::of(host), options), head_time, stopped));
        asked_to_end.next().await;
        note(&format!("ending: requests at work have {} s; Ctrl-C ends them at once", grace.as_secs()));
        let _ = stop.send(());
        tokio::spawn(async move {
            asked_to_end.next().await;
            std::process::exit(exit_code_at_once);
        });
        let host = Arc::clone(host);
        let closed = tokio::task::spawn_blocking(move || host.close(grace)).await;
        let _ = tokio::time::timeout(LAST_WORDS, served).await;
        closed.map_err(io::Error::other)
    });
    // Whoever still has not read the last words does not hold up the end.
    runtime.shutdown_background();
    closed
}

/// What asks the program to end.
struct Signals {
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
    #[cfg(unix)]
    interrupt: tokio::signal::unix::Signal,
}

impl Signals {
    #[cfg(unix)]
    fn new() -> io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    #[cfg(not(unix))]
    fn new() -> io::Result<Self> {
        Ok(Self {})
    }

    #[cfg(unix)]
    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    #[cfg(not(unix))]
    async fn next(&mut self) {
        let _ = tokio::signal::ctrl_c().await;
    }
}
