//! An HTTP server with one page, `/metrics`.

use std::convert::Infallible;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use gnnflow_pipelines::Error;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::runtime::Builder;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::{sleep, timeout};

use super::text::text;
use crate::console::Console;
use crate::status::RunStatus;

/// Connections at the same time. Others wait until one of them ends.
const CONNECTIONS: usize = 16;
/// Maximum time of a connection. It has one request.
const CONNECTION_TIME: Duration = Duration::from_secs(10);
/// Maximum time until the headers of a request have arrived.
const HEADER_TIME: Duration = Duration::from_secs(5);
/// Maximum bytes of the headers of a request.
const HEADER_BYTES: usize = 16 << 10;
/// Time until the next connection is accepted after the system has refused one.
const PAUSE: Duration = Duration::from_millis(100);

/// The media type of the text.
const TEXT: HeaderValue = HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");

/// Makes the current status.
type Status = Arc<dyn Fn() -> RunStatus + Send + Sync>;

/// A running server. It ends when it is dropped.
#[derive(Debug)]
pub(crate) struct MetricsServer {
    _stop: oneshot::Sender<()>,
}

impl MetricsServer {
    /// Serves what `status` returns at `address`, and says so to `console`.
    ///
    /// # Errors
    /// [`Error::Machine`] if the address cannot be used, or the system has no threads left.
    pub(crate) fn start(
        address: &str,
        status: impl Fn() -> RunStatus + Send + Sync + 'static,
        console: &Console,
    ) -> Result<Self, Error> {
        let failed = |problem: io::Error| {
            Error::Machine(format!(
                "cluster.metrics = \"{address}\": cannot listen there: {problem}; use HOST:PORT of this machine with a free port"
            ))
        };
        let listener = TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        console.say(&format!("metrics at http://{}/metrics", listener.local_addr().map_err(failed)?));
        let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let (stop, stopped) = oneshot::channel();
        let status: Status = Arc::new(status);
        let serve = move || {
            runtime.block_on(async {
                let Ok(listener) = tokio::net::TcpListener::from_std(listener) else { return };
                tokio::spawn(accept(listener, status));
                // An error, too: the sender is dropped.
                let _ = stopped.await;
            });
        };
        std::thread::Builder::new().name("metrics".into()).spawn(serve).map_err(failed)?;
        Ok(Self { _stop: stop })
    }
}

async fn accept(listener: tokio::net::TcpListener, status: Status) {
    let slots = Arc::new(Semaphore::new(CONNECTIONS));
    while let Ok(slot) = Arc::clone(&slots).acquire_owned().await {
        match listener.accept().await {
            Ok((socket, _)) => {
                let status = Arc::clone(&status);
                tokio::spawn(async move {
                    let _slot = slot;
                    // Scrapes are repeated: one that is late or broken needs no message.
                    let _ = timeout(CONNECTION_TIME, serve(socket, status)).await;
                });
            }
            Err(_) => sleep(PAUSE).await,
        }
    }
}

async fn serve(socket: TcpStream, status: Status) -> Result<(), hyper::Error> {
    let answer = service_fn(move |request: Request<Incoming>| {
        let answer = respond(request.method(), request.uri().path(), &*status);
        async move { Ok::<_, Infallible>(answer) }
    });
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIME)
        .max_buf_size(HEADER_BYTES)
        .keep_alive(false)
        .serve_connection(TokioIo::new(socket), answer)
        .await
}

fn respond(method: &Method, path: &str, status: &dyn Fn() -> RunStatus) -> Response<Full<Bytes>> {
    if path != "/metrics" {
        return plain(StatusCode::NOT_FOUND, "the metrics are at /metrics\n");
    }
    if method != Method::GET {
        let mut answer = plain(StatusCode::METHOD_NOT_ALLOWED, "only GET\n");
        answer.headers_mut().insert(ALLOW, HeaderValue::from_static("GET"));
        return answer;
    }
    match text(&status()) {
        Ok(text) => {
            let mut answer = Response::new(Full::new(Bytes::from(text)));
            answer.headers_mut().insert(CONTENT_TYPE, TEXT);
            answer
        }
        Err(_) => plain(StatusCode::INTERNAL_SERVER_ERROR, "the status cannot be encoded\n"),
    }
}

fn plain(code: StatusCode, text: &'static str) -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::new(Bytes::from_static(text.as_bytes())));
    *answer.status_mut() = code;
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_get_of_the_one_page_is_answered() {
        let code = |method: Method, path: &str| respond(&method, path, &RunStatus::default).status().as_u16();
        let codes = [
            code(Method::GET, "/metrics"),
            code(Method::POST, "/metrics"),
            code(Method::HEAD, "/metrics"),
            code(Method::GET, "/"),
        ];
        assert_eq!(codes, [200, 405, 405, 404]);
    }
}
