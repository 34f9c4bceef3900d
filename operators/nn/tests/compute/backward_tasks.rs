//! Backward node tasks, which leave out what they do not read, have the bits of a backward pass through the rows that are sent.

use candle_core::{Device, Tensor, Var};
use gnnflow_data::rng::{Key, Purpose};
use gnnflow_nn::model::NodeInputs;
use gnnflow_nn::node_task::{NodeBack, NodeGradient, NodeResult, NodeRows, NodeTask, Work, matrix};
use gnnflow_nn::{JumpingKnowledge, Model, ModelSpec, Norm, Registry, ops};

use crate::factory::{flat, tensor};

const DIM: usize = 50;
const ROWS: usize = 1300;

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|number| number.to_bits()).collect()
}

/// Returns the gradients of the task's held and aggregated rows, and those of the parameters, if its sent rows have the gradient `of_sent`.
fn through_sent_rows(
    model: &Model,
    index: usize,
    [held, aggregated]: &[Tensor; 2],
    of_sent: &Tensor,
    key: Option<Key>,
) -> [Vec<f32>; 3] {
    let [held, aggregated] = [held, aggregated].map(|rows| Var::from_tensor(rows).unwrap());
    let mut sums = vec![0.0; model.params().flat_len() - model.params().trained_len()];
    let inputs = NodeInputs { held: Some(&held), aggregated: Some(&aggregated), ..NodeInputs::default() };
    let outputs = model.node_task(index, inputs, key, Some(&mut sums)).unwrap();
    let gradients = ops::inject_gradient(&outputs.sent.unwrap(), of_sent).unwrap().backward().unwrap();
    let mut of_parameters = vec![0.0; model.params().flat_len()];
    model.params().gradients(&gradients, &mut of_parameters).unwrap();
    of_parameters[model.params().trained_len()..].copy_from_slice(&sums);
    let of_rows = |rows: &Var| gradients.get(rows).map_or_else(|| vec![0.0; rows.elem_count()], flat);
    [of_rows(&held), of_rows(&aggregated), of_parameters]
}

#[test]
fn backward_tasks_have_the_bits_of_a_pass_through_the_sent_rows() {
    let spec = |kind: &str, norm: Norm| ModelSpec {
        input_dropout: 0.3,
        dropout: 0.4,
        norm,
        ..ModelSpec::new(kind, 3, DIM, 24, 7)
    };
    let specs = [
        spec("gcn", Norm::None),
        spec("gcn", Norm::Batch),
        spec("sage", Norm::None),
        spec("mlp", Norm::None),
        ModelSpec { residual: true, ..spec("sage", Norm::Layer) },
        ModelSpec { jumping_knowledge: JumpingKnowledge::Cat, ..spec("gcn", Norm::None) },
        // Its layers sum before they multiply.
        ModelSpec { hidden: 64, ..spec("gcn", Norm::None) },
    ];
    for spec in specs {
        let model = Model::build(&spec, &Registry::default(), &Device::Cpu, 5).unwrap();
        let hops = model.hops().unwrap();
        for (index, hop) in hops.iter().enumerate() {
            let [held, width] = match index.checked_sub(1).map(|before| hops[before]) {
                None => [DIM, 1],
                Some(before) => [before.held, before.width],
            };
            let rows = [(held, 1), (width, 2)].map(|(columns, seed)| tensor((ROWS, columns.max(1)), seed));
            let of_sent = tensor((ROWS, hop.width), 3);
            for key in [None, Some(Key::new(3, Purpose::Dropout))] {
                let expected = through_sent_rows(&model, index, &rows, &of_sent, key);
                for of_rows in [false, true] {
                    let [held, aggregated] = rows.each_ref().map(|rows| Some(matrix(flat(rows), rows.dim(1).unwrap())));
                    let gradient =
                        NodeGradient { sent: Some(matrix(flat(&of_sent), hop.width)), ..NodeGradient::default() };
                    let task = NodeTask {
                        index,
                        count: ROWS,
                        rows: NodeRows { held, aggregated, initial: None },
                        key,
                        work: Work::Backward { gradient, of_rows },
                    };
                    let what = format!("{} {:?} task {index}, of rows {of_rows}", spec.kind, spec.norm);
                    let NodeResult::Back(NodeBack { held, aggregated, flat, .. }) = task.run(&model).unwrap() else {
                        panic!("{what}: it is no backward task");
                    };
                    assert!(bits(&flat) == bits(&expected[2]), "{what}: parameters");
                    for (found, expected) in [held, aggregated].into_iter().zip(&expected) {
                        assert_eq!(found.is_some(), of_rows, "{what}");
                        assert!(found.is_none_or(|found| bits(&found) == bits(expected)), "{what}: rows");
                    }
                }
            }
        }
    }
}
