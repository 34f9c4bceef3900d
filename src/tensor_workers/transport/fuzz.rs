//! Fuzz target of the messages between graph workers and tensor workers.

use arrow_flight::{Action, FlightData, FlightDescriptor};
use futures_util::stream;
use gnnflow_data::testing::corpus::parts;
use tokio::runtime::Builder;

use super::call_buffer::{pieces, read_pieces};
use super::matrices::Matrices;
use super::registry::{REGISTER_ACTION, Registration, RegistryMessage};
use super::wire::{CallHeader, call_header, read};

/// A call or a response. The parts are the header of a call, then the metadata and the body of each message.
pub fn tensor_messages(bytes: &[u8]) -> bool {
    let parts = parts(bytes);
    let (&header, rest) = parts.split_first().unwrap_or((&bytes, &[]));
    let action = Action { r#type: REGISTER_ACTION.into(), body: header.to_vec().into() };
    let registers = serde_json::from_slice::<Registration>(&action.body).is_ok();
    let registered = serde_json::from_slice::<RegistryMessage>(header).is_ok();
    let message = |pair: &[&[u8]]| FlightData {
        app_metadata: pair[0].to_vec().into(),
        data_body: pair.get(1).map(|body| body.to_vec()).unwrap_or_default().into(),
        ..FlightData::default()
    };
    let messages: Vec<FlightData> = rest.chunks(2).map(message).collect();
    let matrices = || Matrices::new(stream::iter(messages.clone().into_iter().map(Ok)));
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime without threads");

    let response = runtime.block_on(async { read(&mut matrices(), 2).await.is_ok() });
    let first =
        FlightData { flight_descriptor: Some(FlightDescriptor::new_cmd(header.to_vec())), ..FlightData::default() };
    let Ok(call) = call_header(&first) else { return response | registers | registered };
    let text = serde_json::to_vec(&call).expect("a header is JSON");
    let again: CallHeader = serde_json::from_slice(&text).expect("a written header can be read");
    assert_eq!(serde_json::to_vec(&again).expect("a header is JSON"), text);
    let received = runtime.block_on(async {
        let (sender, mut receiver) = pieces();
        let read = read_pieces(matrices(), call.kind, call.tasks.clone(), sender);
        let count = async {
            let mut count = 0;
            while receiver.recv().await.is_some() {
                count += 1;
            }
            count
        };
        futures_util::future::join(read, count).await
    });
    match received {
        (Ok(()), pieces) => {
            let per_task = |split: bool| usize::from(split) + 1 + usize::from(!call.kind.is_forward());
            let expected: usize = call.tasks.iter().map(|task| per_task(task.ranges().count() > 1)).sum();
            assert_eq!(pieces, expected);
            true
        }
        (Err(error), _) => {
            assert!(error.is_some_and(|text| !text.is_empty()), "the channel was not closed");
            false
        }
    }
}
