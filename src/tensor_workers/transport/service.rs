//! The Flight service of both sides, for clients that have proven the secret. It passes calls on to the other files.

use std::pin::Pin;
use std::sync::Arc;

use arrow_flight::flight_service_server::FlightService;
use arrow_flight::{
    Action, ActionType, Criteria, Empty, FlightData, FlightDescriptor, FlightInfo, HandshakeRequest, HandshakeResponse,
    PollInfo, PutResult, SchemaResult, Ticket,
};
use futures_util::Stream;
use tokio::sync::mpsc;
use tonic::{Request, Response, Status, Streaming, async_trait};

use super::device_kind::KIND_ACTION;
use super::parameters::ParameterServer;
use super::registry::WorkerRegistry;
use super::task_runner::TaskRunner;

/// Maximum number of messages that wait for the other side.
pub(super) const QUEUED_MESSAGES: usize = 4;

type ResponseStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// The role of a server.
#[derive(Clone)]
pub(super) enum Role {
    /// A tensor worker: runs tasks.
    TensorWorker(Arc<TaskRunner>),
    /// A graph worker: serves parameters and registers tensor workers.
    GraphWorker(Arc<ParameterServer>, Arc<WorkerRegistry>),
}

/// A service that only authenticated clients can reach.
#[derive(Clone)]
pub(super) struct Service {
    pub(super) role: Role,
}

/// Returns the items of a channel as a stream.
pub(super) fn stream_of<T: Send + 'static>(receiver: mpsc::Receiver<T>) -> Pin<Box<dyn Stream<Item = T> + Send>> {
    Box::pin(futures_util::stream::unfold(receiver, |mut receiver| async move {
        receiver.recv().await.map(|message| (message, receiver))
    }))
}

fn unimplemented<T>() -> Result<T, Status> {
    Err(Status::unimplemented("gnnflow has no such call"))
}

#[async_trait]
impl FlightService for Service {
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
        unimplemented()
    }

    async fn do_exchange(
        &self,
        request: Request<Streaming<FlightData>>,
    ) -> Result<Response<Self::DoExchangeStream>, Status> {
        let Role::TensorWorker(runner) = &self.role else { return unimplemented() };
        let (runner, requests) = (Arc::clone(runner), request.into_inner());
        let (sender, receiver) = mpsc::channel(QUEUED_MESSAGES);
        tokio::spawn(async move { runner.serve(requests, sender).await });
        Ok(Response::new(stream_of(receiver)))
    }

    async fn do_get(&self, request: Request<Ticket>) -> Result<Response<Self::DoGetStream>, Status> {
        let Role::GraphWorker(parameters, _) = &self.role else { return unimplemented() };
        let messages = Arc::clone(parameters).get(request.into_inner()).await?;
        Ok(Response::new(Box::pin(futures_util::stream::iter(messages.into_iter().map(Ok)))))
    }

    async fn list_flights(&self, _: Request<Criteria>) -> Result<Response<Self::ListFlightsStream>, Status> {
        unimplemented()
    }

    async fn get_flight_info(&self, _: Request<FlightDescriptor>) -> Result<Response<FlightInfo>, Status> {
        unimplemented()
    }

    async fn poll_flight_info(&self, _: Request<FlightDescriptor>) -> Result<Response<PollInfo>, Status> {
        unimplemented()
    }

    async fn get_schema(&self, _: Request<FlightDescriptor>) -> Result<Response<SchemaResult>, Status> {
        unimplemented()
    }

    async fn do_put(&self, _: Request<Streaming<FlightData>>) -> Result<Response<Self::DoPutStream>, Status> {
        unimplemented()
    }

    async fn do_action(&self, request: Request<Action>) -> Result<Response<Self::DoActionStream>, Status> {
        let request = request.into_inner();
        let registry = match &self.role {
            Role::GraphWorker(_, registry) => registry,
            Role::TensorWorker(runner) if request.r#type == KIND_ACTION => {
                let body = serde_json::to_vec(runner.kind()).map_err(|error| Status::internal(error.to_string()))?;
                let kind = arrow_flight::Result { body: body.into() };
                return Ok(Response::new(Box::pin(futures_util::stream::iter([Ok(kind)]))));
            }
            Role::TensorWorker(_) => return unimplemented(),
        };
        let (sender, receiver) = mpsc::channel(QUEUED_MESSAGES);
        registry.register(&request, sender)?;
        Ok(Response::new(stream_of(receiver)))
    }

    async fn list_actions(&self, _: Request<Empty>) -> Result<Response<Self::ListActionsStream>, Status> {
        unimplemented()
    }
}
