//! Guards: nodes that make a run fail before an operator gets a value that would crash the process.
//!
//! A guard looks up an index in a table of one element: 0 for a good value, and 1, which ONNX Runtime
//! refuses, for a bad one. The operator's input is computed from the result 0, so that the operator runs
//! after its guard.

use onnx_graph::{
    proto::{AttributeProto, NodeProto, TensorProto, attribute_proto::AttributeType, tensor_proto::DataType},
    structure,
};

use super::{elements::Element, table::Need};

/// The name prefix of guards. ONNX Runtime's errors quote the name of the failed node.
const PREFIX: &str = "~guard~";

/// The error messages of a model's guards, by guard number.
#[derive(Debug, Default)]
pub(crate) struct Guards(Vec<String>);

impl Guards {
    /// Extracts the message of the guard that failed the run from the library's message.
    pub(crate) fn reason(&self, message: &str) -> Option<&str> {
        let (_, rest) = message.split_once(PREFIX)?;
        let number: usize = rest
            .split(|character: char| !character.is_ascii_digit())
            .next()?
            .parse()
            .ok()?;
        self.0.get(number).map(String::as_str)
    }
}

/// Appends nodes to a graph, with unique names for their values.
pub(super) struct Writer {
    guards: Guards,
    values: usize,
}

impl Writer {
    pub(super) fn new() -> Self {
        Self {
            guards: Guards::default(),
            values: 0,
        }
    }

    pub(super) fn has_written(&self) -> bool {
        self.values > 0
    }

    pub(super) fn finish(self) -> Guards {
        self.guards
    }

    /// Returns a new value name.
    pub(super) fn name(&mut self) -> String {
        let name = format!("~value~{}", self.values);
        self.values += 1;
        name
    }

    /// Appends a node and returns the name of its output.
    pub(super) fn op(
        &mut self,
        op: &str,
        inputs: &[&str],
        attribute: Vec<AttributeProto>,
        nodes: &mut Vec<NodeProto>,
    ) -> String {
        let output = self.name();
        nodes.push(NodeProto {
            op_type: op.to_owned(),
            name: output.clone(),
            input: inputs.iter().map(|&input| input.to_owned()).collect(),
            output: vec![output.clone()],
            attribute,
            ..NodeProto::default()
        });
        output
    }

    /// Appends an integer constant: a scalar, or a vector of 1 element.
    pub(super) fn constant(
        &mut self,
        value: i64,
        element: Element,
        dims: &[i64],
        nodes: &mut Vec<NodeProto>,
    ) -> String {
        let bytes = match element {
            Element::Int32 => (value as i32).to_le_bytes().to_vec(),
            Element::Int64 => value.to_le_bytes().to_vec(),
        };
        let tensor = TensorProto {
            dims: dims.to_vec(),
            data_type: element.data_type() as i32,
            raw_data: bytes.into(),
            ..TensorProto::default()
        };
        let value = AttributeProto {
            name: "value".to_owned(),
            r#type: AttributeType::Tensor as i32,
            t: Some(tensor),
            ..AttributeProto::default()
        };
        self.op("Constant", &[], vec![value], nodes)
    }

    /// Appends a `Cast` and returns the name of its output.
    pub(super) fn cast(&mut self, value: &str, to: DataType, nodes: &mut Vec<NodeProto>) -> String {
        let to = AttributeProto {
            name: "to".to_owned(),
            r#type: AttributeType::Int as i32,
            i: to as i64,
            ..AttributeProto::default()
        };
        self.op("Cast", &[value], vec![to], nodes)
    }

    /// Appends a guard that fails the run with `reason` if any element of the BOOL tensor `is_bad` is true.
    /// Returns the name of an INT64 tensor of zeros with the same shape.
    pub(super) fn zeros_unless(
        &mut self,
        is_bad: &str,
        reason: String,
        nodes: &mut Vec<NodeProto>,
    ) -> String {
        let index = self.cast(is_bad, DataType::Int64, nodes);
        let table = self.constant(0, Element::Int64, &[1], nodes);
        let zeros = self.op("Gather", &[&table, &index], vec![], nodes);
        if let Some(guard) = nodes.last_mut() {
            guard.name = format!("{PREFIX}{}", self.guards.0.len());
        }
        self.guards.0.push(reason);
        zeros
    }

    /// Appends guards for the requirements `needs` of a node, and routes the node's first input through them.
    pub(super) fn guard(
        &mut self,
        node: &mut NodeProto,
        needs: &[(String, Need)],
        nodes: &mut Vec<NodeProto>,
    ) {
        let Some(carrier) = node.input.iter().position(|name| !name.is_empty()) else {
            return;
        };
        let mut zeros: Option<String> = None;
        for (name, need) in needs {
            let (is_good, reason) = match need {
                Need::Elements => {
                    let size = self.op("Size", &[name], vec![], nodes);
                    (
                        self.cast(&size, DataType::Bool, nodes),
                        "cannot run without elements",
                    )
                }
                Need::Positive => {
                    let value = self.cast(name, DataType::Int64, nodes);
                    let zero = self.constant(0, Element::Int64, &[], nodes);
                    let is_good = self.op("Greater", &[&value, &zero], vec![], nodes);
                    (is_good, "cannot run with a length or step of 0 or less")
                }
            };
            let is_bad = self.op("Not", &[&is_good], vec![], nodes);
            let reason = format!("{} {reason} in ONNX Runtime", structure::label(node));
            let more = self.zeros_unless(&is_bad, reason, nodes);
            zeros = Some(match zeros {
                Some(before) => self.op("Add", &[&before, &more], vec![], nodes),
                None => more,
            });
        }
        if let Some(zeros) = zeros {
            let shape = self.op("Shape", &[&node.input[carrier]], vec![], nodes);
            let same = self.op("Add", &[&shape, &zeros], vec![], nodes);
            node.input[carrier] = self.op("Reshape", &[&node.input[carrier], &same], vec![], nodes);
        }
    }
}
