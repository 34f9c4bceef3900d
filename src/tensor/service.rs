//! The Flight service of either side: who asks is checked here, and what is asked is the other files' business.

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

use super::auth::{Guard, HANDSHAKE};
use super::parameters::Parameters;
use super::roll::Roll;
use super::tasks::Tasks;

/// Messages that wait for the other side at most.
pub(super) const AHEAD: usize = 4;

type Sending<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// What is served.
#[derive(Clone)]
pub(super) enum Serves {
    /// Tasks are done.
    Tasks(Arc<Tasks>),
    /// Parameters are handed out, and workers are taken in.
    Parameters(Arc<Parameters>, Arc<Roll>),
}

/// A service behind a guard.
#[derive(Clone)]
pub(super) struct Service {
    pub(super) guard: Arc<Guard>,
    pub(super) serves: Serves,
}

/// What comes through a channel, as a stream.
pub(super) fn through<T: Send + 'static>(receiver: mpsc::Receiver<Result<T, Status>>) -> Sending<T> {
    Box::pin(futures_util::stream::unfold(receiver, |mut receiver| async move {
        receiver.recv().await.map(|message| (message, receiver))
    }))
}

fn not_here<T>() -> Result<T, Status> {
    Err(Status::unimplemented("gnnflow has no such call"))
}

#[async_trait]
impl FlightService for Service {
    type HandshakeStream = Sending<HandshakeResponse>;
    type ListFlightsStream = Sending<FlightInfo>;
    type DoGetStream = Sending<FlightData>;
    type DoPutStream = Sending<PutResult>;
    type DoActionStream = Sending<arrow_flight::Result>;
    type ListActionsStream = Sending<ActionType>;
    type DoExchangeStream = Sending<FlightData>;

    async fn handshake(
        &self,
        request: Request<Streaming<HandshakeRequest>>,
    ) -> Result<Response<Self::HandshakeStream>, Status> {
        let (guard, mut heard) = (Arc::clone(&self.guard), request.into_inner());
        let (say, said) = mpsc::channel(AHEAD);
        tokio::spawn(async move {
            let all = async {
                let ended = || Status::unauthenticated("the handshake was broken off");
                let first = heard.message().await?.ok_or_else(ended)?;
                let (client, server) = guard.hello(&first.payload)?;
                let hello = serde_json::to_vec(&server).map_err(|error| Status::internal(error.to_string()))?;
                let send = |payload: Vec<u8>| HandshakeResponse { protocol_version: 0, payload: payload.into() };
                let _ = say.send(Ok(send(hello))).await;
                let proof = heard.message().await?.ok_or_else(ended)?;
                Ok::<_, Status>(send(guard.admit(&client, &server, &proof.payload)?))
            };
            let answer = tokio::time::timeout(HANDSHAKE, all).await;
            let late = Err(Status::deadline_exceeded("the handshake took too long"));
            let answer = answer.unwrap_or(late);
            if let Err(status) = &answer {
                guard.refused(status);
            }
            let _ = tokio::time::timeout(HANDSHAKE, say.send(answer)).await;
        });
        Ok(Response::new(through(said)))
    }

    async fn do_exchange(
        &self,
        request: Request<Streaming<FlightData>>,
    ) -> Result<Response<Self::DoExchangeStream>, Status> {
        self.guard.check(request.metadata())?;
        let Serves::Tasks(tasks) = &self.serves else { return not_here() };
        let (tasks, heard) = (Arc::clone(tasks), request.into_inner());
        let (say, said) = mpsc::channel(AHEAD);
        tokio::spawn(async move { tasks.answer(heard, say).await });
        Ok(Response::new(through(said)))
    }

    async fn do_get(&self, request: Request<Ticket>) -> Result<Response<Self::DoGetStream>, Status> {
        self.guard.check(request.metadata())?;
        let Serves::Parameters(parameters, _) = &self.serves else { return not_here() };
        let messages = Arc::clone(parameters).get(request.into_inner()).await?;
        Ok(Response::new(Box::pin(futures_util::stream::iter(messages.into_iter().map(Ok)))))
    }

    async fn list_flights(&self, _: Request<Criteria>) -> Result<Response<Self::ListFlightsStream>, Status> {
        not_here()
    }

    async fn get_flight_info(&self, _: Request<FlightDescriptor>) -> Result<Response<FlightInfo>, Status> {
        not_here()
    }

    async fn poll_flight_info(&self, _: Request<FlightDescriptor>) -> Result<Response<PollInfo>, Status> {
        not_here()
    }

    async fn get_schema(&self, _: Request<FlightDescriptor>) -> Result<Response<SchemaResult>, Status> {
        not_here()
    }

    async fn do_put(&self, _: Request<Streaming<FlightData>>) -> Result<Response<Self::DoPutStream>, Status> {
        not_here()
    }

    async fn do_action(&self, request: Request<Action>) -> Result<Response<Self::DoActionStream>, Status> {
        self.guard.check(request.metadata())?;
        let Serves::Parameters(_, roll) = &self.serves else { return not_here() };
        let (say, said) = mpsc::channel(AHEAD);
        roll.enlist(&request.into_inner(), say)?;
        Ok(Response::new(through(said)))
    }

    async fn list_actions(&self, _: Request<Empty>) -> Result<Response<Self::ListActionsStream>, Status> {
        not_here()
    }
}
