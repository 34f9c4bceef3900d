//! A Flight server that completes the handshake of a tensor worker and then misbehaves.

use std::pin::Pin;
use std::time::Duration;

use arrow_flight::flight_service_server::{FlightService, FlightServiceServer};
use arrow_flight::{
    Action, ActionType, Criteria, Empty, FlightData, FlightDescriptor, FlightInfo, HandshakeRequest, HandshakeResponse,
    PollInfo, PutResult, SchemaResult, Ticket,
};
use futures_util::Stream;
use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use tokio::sync::mpsc;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status, Streaming, async_trait};

/// The way in which the server misbehaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Misbehavior {
    /// Its version differs.
    Version,
    /// Its answer has a wrong shape.
    Shape,
    /// Its answer is malformed.
    Garbage,
    /// It ends without an answer.
    Nothing,
    /// It never answers.
    Silence,
    /// It does not speak Flight.
    NoFlight,
}

#[derive(Serialize, Deserialize)]
struct Hello {
    gnnflow: String,
    protocol: u32,
    nonce: String,
}

type ResponseStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

struct FakeWorker(Misbehavior);

/// Starts the server on a new thread. Returns its address.
pub(crate) fn serve(misbehavior: Misbehavior) -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        if misbehavior == Misbehavior::NoFlight {
            while let Ok((mut stream, _)) = listener.accept() {
                let _ = std::io::Write::write_all(&mut stream, b"HTTP/1.1 404 Not Found\r\n\r\n");
            }
            return;
        }
        listener.set_nonblocking(true).unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.block_on(async move {
            let incoming = TcpIncoming::from(tokio::net::TcpListener::from_std(listener).unwrap());
            Server::builder()
                .add_service(FlightServiceServer::new(FakeWorker(misbehavior)))
                .serve_with_incoming(incoming)
                .await
                .unwrap();
        });
    });
    address
}

fn proof(role: &str, client: &Hello, server: &Hello) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(b"loopback").unwrap();
    mac.update(b"gnnflow handshake ");
    mac.update(&(role.len() as u64).to_le_bytes());
    mac.update(role.as_bytes());
    mac.update(&serde_json::to_vec(&[client, server]).unwrap());
    mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn stream_of<T: Send + 'static>(receiver: mpsc::Receiver<Result<T, Status>>) -> ResponseStream<T> {
    Box::pin(futures_util::stream::unfold(receiver, |mut receiver| async move {
        receiver.recv().await.map(|message| (message, receiver))
    }))
}

/// Returns a matrix of one number, followed by the end of an answer.
fn wrong_shape() -> Vec<FlightData> {
    let metadata = r#"{"name":"Held","rows":1,"dim":1,"number":"F32"}"#;
    let rows = FlightData { app_metadata: metadata.into(), data_body: vec![0; 4].into(), ..FlightData::default() };
    vec![rows, FlightData { app_metadata: r#"{"loss":null}"#.into(), ..FlightData::default() }]
}

fn not_supported<T>() -> Result<T, Status> {
    Err(Status::unimplemented("no"))
}

#[async_trait]
impl FlightService for FakeWorker {
    type HandshakeStream = ResponseStream<HandshakeResponse>;
    type ListFlightsStream = ResponseStream<FlightInfo>;
    type DoGetStream = ResponseStream<FlightData>;
    type DoPutStream = ResponseStream<PutResult>;
    type DoActionStream = ResponseStream<arrow_flight::Result>;
    type ListActionsStream = ResponseStream<ActionType>;
    type DoExchangeStream = ResponseStream<FlightData>;

    async fn handshake(
        &self,
        request: Request<Streaming<HandshakeRequest>>,
    ) -> Result<Response<Self::HandshakeStream>, Status> {
        let (misbehavior, mut requests) = (self.0, request.into_inner());
        let (sender, receiver) = mpsc::channel(4);
        tokio::spawn(async move {
            let first = requests.message().await.unwrap().unwrap();
            let client: Hello = serde_json::from_slice(&first.payload).unwrap();
            let own = env!("CARGO_PKG_VERSION");
            let gnnflow = if misbehavior == Misbehavior::Version { "9.9.9" } else { own }.to_owned();
            let server = Hello { gnnflow, protocol: client.protocol, nonce: "not a secret".into() };
            let send = |payload: Vec<u8>| Ok(HandshakeResponse { protocol_version: 0, payload: payload.into() });
            sender.send(send(serde_json::to_vec(&server).unwrap())).await.unwrap();
            requests.message().await.unwrap().unwrap();
            let proof = proof("flight server", &client, &server);
            let answer = serde_json::json!({ "proof": proof, "token": "some.token" });
            let _ = sender.send(send(serde_json::to_vec(&answer).unwrap())).await;
        });
        Ok(Response::new(stream_of(receiver)))
    }

    async fn do_exchange(
        &self,
        request: Request<Streaming<FlightData>>,
    ) -> Result<Response<Self::DoExchangeStream>, Status> {
        let (misbehavior, mut requests) = (self.0, request.into_inner());
        let (sender, receiver) = mpsc::channel(4);
        tokio::spawn(async move {
            while let Ok(Some(_)) = requests.message().await {}
            let messages = match misbehavior {
                Misbehavior::Shape => wrong_shape(),
                Misbehavior::Garbage => vec![FlightData { app_metadata: "\0\u{1}{{".into(), ..FlightData::default() }],
                Misbehavior::Silence => {
                    tokio::time::sleep(Duration::from_secs(600)).await;
                    Vec::new()
                }
                _ => Vec::new(),
            };
            for message in messages {
                let _ = sender.send(Ok(message)).await;
            }
        });
        Ok(Response::new(stream_of(receiver)))
    }

    async fn do_get(&self, _: Request<Ticket>) -> Result<Response<Self::DoGetStream>, Status> {
        not_supported()
    }

    async fn list_flights(&self, _: Request<Criteria>) -> Result<Response<Self::ListFlightsStream>, Status> {
        not_supported()
    }

    async fn get_flight_info(&self, _: Request<FlightDescriptor>) -> Result<Response<FlightInfo>, Status> {
        not_supported()
    }

    async fn poll_flight_info(&self, _: Request<FlightDescriptor>) -> Result<Response<PollInfo>, Status> {
        not_supported()
    }

    async fn get_schema(&self, _: Request<FlightDescriptor>) -> Result<Response<SchemaResult>, Status> {
        not_supported()
    }

    async fn do_put(&self, _: Request<Streaming<FlightData>>) -> Result<Response<Self::DoPutStream>, Status> {
        not_supported()
    }

    async fn do_action(&self, _: Request<Action>) -> Result<Response<Self::DoActionStream>, Status> {
        not_supported()
    }

    async fn list_actions(&self, _: Request<Empty>) -> Result<Response<Self::ListActionsStream>, Status> {
        not_supported()
    }
}
