//! Node tasks on the two parts of their rows have the bits of the whole.

use candle_core::{Device, Tensor};
use gnnflow_data::rng::{Key, Purpose};
use gnnflow_nn::model::{NodeInputs, NodeOutputs, split_row};
use gnnflow_nn::{JumpingKnowledge, KindOptions, Model, ModelSpec, Norm, Registry};

use crate::factory::{flat, tensor};

const DIM: usize = 37;

fn all(outputs: &NodeOutputs) -> Vec<&Tensor> {
    [outputs.held.as_ref(), outputs.sent.as_ref()].into_iter().flatten().chain(outputs.terms.iter().flatten()).collect()
}

fn bits(tensors: &[&Tensor]) -> Vec<u32> {
    tensors.iter().flat_map(|tensor| flat(tensor)).map(f32::to_bits).collect()
}

#[test]
fn node_tasks_on_split_rows_have_equal_bits() {
    let options = KindOptions { relations: 3, ..KindOptions::default() };
    let spec = |kind: &str, norm: Norm, residual: bool| ModelSpec {
        input_dropout: 0.3,
        dropout: 0.4,
        heads: 4,
        norm,
        residual,
        options: options.clone(),
        ..ModelSpec::new(kind, 3, DIM, 48, 7)
    };
    let specs = [
        spec("gcn", Norm::None, false),
        spec("gcn", Norm::Layer, true),
        spec("gcn", Norm::Batch, false),
        spec("sage", Norm::None, true),
        spec("sage", Norm::Layer, false),
        spec("gat", Norm::None, false),
        spec("gatv2", Norm::None, true),
        spec("gin", Norm::Layer, false),
        spec("rgcn", Norm::None, false),
        spec("appnp", Norm::None, false),
        spec("sgc", Norm::None, false),
        spec("mlp", Norm::None, false),
        ModelSpec { jumping_knowledge: JumpingKnowledge::Cat, ..spec("gcn", Norm::None, false) },
        ModelSpec { jumping_knowledge: JumpingKnowledge::Max, ..spec("sage", Norm::Layer, true) },
        ModelSpec { jumping_knowledge: JumpingKnowledge::Mean, ..spec("mlp", Norm::None, false) },
    ];
    for spec in specs {
        let model = Model::build(&spec, &Registry::default(), &Device::Cpu, 5).unwrap();
        let hops = model.hops().unwrap();
        for index in 0..=hops.len() {
            for (rows, key) in [513, 1024, 1500, 4097]
                .into_iter()
                .flat_map(|rows| [(rows, None), (rows, Some(Key::new(3, Purpose::Dropout)))])
            {
                let what =
                    format!("{} {:?} task {index}, {rows} rows, training {}", spec.kind, spec.norm, key.is_some());
                if !model.task_works_by_row(index, key.is_some()) {
                    assert!(spec.norm == Norm::Batch && key.is_some() && index > 0, "{what}");
                    continue;
                }
                let (held, aggregated) = match index.checked_sub(1).map(|before| hops[before]) {
                    None => (DIM, 0),
                    Some(hop) => (hop.held, hop.slots() * hop.width),
                };
                let first = hops[0].held;
                let whole =
                    [(held, 1), (aggregated, 2), (first, 3)].map(|(dim, seed)| tensor((rows, dim.max(1)), seed));
                let run = |begin: usize, count: usize| {
                    let part = whole.each_ref().map(|rows| rows.narrow(0, begin, count).unwrap().contiguous().unwrap());
                    let [held, aggregated, initial] = part.each_ref().map(Some);
                    let mut untold = vec![0.0; model.params().flat_len() - model.params().trained_len()];
                    let inputs = NodeInputs { held, aggregated, initial, first: begin };
                    model.node_task(index, inputs, key, key.is_some().then_some(&mut untold[..])).unwrap()
                };
                let half = split_row(rows).unwrap();
                let (once, [left, right]) = (run(0, rows), [run(0, half), run(half, rows - half)]);
                for ((once, left), right) in all(&once).into_iter().zip(all(&left)).zip(all(&right)) {
                    assert!(bits(&[once]) == bits(&[left, right]), "{what}");
                }
            }
        }
    }
}
