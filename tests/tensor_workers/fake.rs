//! A Flight server that completes the handshake of a tensor worker and then misbehaves.

use std::pin::Pin;
use std::time::Duration;

use arrow_flight::flight_service_server::{FlightService, FlightServiceServer};
use arrow_flight::{
    Action, ActionType, Criteria, Empty, FlightData, FlightDescriptor, FlightInfo, HandshakeRequest, HandshakeResponse,
    PollInfo, PutResult, SchemaResult, Ticket,
};
use futures_util::Stream;
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tonic::transport::Server;
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
            let listener = TcpListener::from_std(listener).unwrap();
            let incoming = futures_util::stream::unfold(listener, move |listener| async move {
                loop {
                    let (socket, _) = listener.accept().await.unwrap();
                    if let Ok(socket) = handshake(socket, misbehavior).await {
                        return Some((Ok::<_, std::io::Error>(socket), listener));
                    }
                }
            });
            Server::builder()
                .add_service(FlightServiceServer::new(FakeWorker(misbehavior)))
                .serve_with_incoming(incoming)
                .await
                .unwrap();
        });
    });
    address
}

/// Makes the handshake of a tensor worker. Without a secret, both sides use a constant, and connections on loopback are not encrypted.
async fn handshake(mut socket: TcpStream, misbehavior: Misbehavior) -> std::io::Result<TcpStream> {
    let magic = *b"gnnflowT";
    let key: [u8; 32] = Sha256::digest(b"gnnflow connectionsloopback").into();
    let noise = snow::Builder::new("Noise_NNpsk0_25519_AESGCM_SHA256".parse().unwrap());
    let mut noise = noise.psk(0, &key).unwrap().prologue(&magic).unwrap().build_responder().unwrap();
    let mut frame = [0; 12];
    socket.read_exact(&mut frame).await?;
    let mut message = vec![0; u32::from_le_bytes(frame[8..].try_into().unwrap()) as usize];
    socket.read_exact(&mut message).await?;
    let mut payload = vec![0; message.len()];
    let length = noise.read_message(&message, &mut payload).unwrap();
    let mut hello: serde_json::Value = serde_json::from_slice(&payload[..length]).unwrap();
    assert_eq!(hello["encrypt"], false);
    if misbehavior == Misbehavior::Version {
        hello["gnnflow"] = "9.9.9".into();
    }
    let mut answer = vec![0; 1024];
    let length = noise.write_message(hello.to_string().as_bytes(), &mut answer).unwrap();
    socket.write_all(&[&magic[..], &(length as u32).to_le_bytes(), &answer[..length]].concat()).await?;
    // The record that completes the client's proof.
    socket.read_exact(&mut [0; 2 + 1 + 16]).await?;
    Ok(socket)
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
        _: Request<Streaming<HandshakeRequest>>,
    ) -> Result<Response<Self::HandshakeStream>, Status> {
        not_supported()
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

    /// Its device.
    async fn do_action(&self, _: Request<Action>) -> Result<Response<Self::DoActionStream>, Status> {
        let kind = arrow_flight::Result { body: "\"Cpu\"".into() };
        Ok(Response::new(Box::pin(futures_util::stream::iter([Ok(kind)]))))
    }

    async fn list_actions(&self, _: Request<Empty>) -> Result<Response<Self::ListActionsStream>, Status> {
        not_supported()
    }
}
