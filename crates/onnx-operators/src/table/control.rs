//! Rows of the operator table for operators that the runtime interprets without a kernel: subgraphs,
//! sequences, optional values, constants.

use crate::operator::{Operator, Outputs, op};

pub(super) const ROWS: &[Operator] = &[
    op("ConcatFromSequence")
        .since(11)
        .takes(&["axis", "new_axis"])
        .by_steps(),
    op("Constant")
        .takes(&[
            "value",
            "value_float",
            "value_floats",
            "value_int",
            "value_ints",
            "value_string",
            "value_strings",
        ])
        .by_steps(),
    op("If")
        .gives(Outputs::AsNamed)
        .takes(&["else_branch", "then_branch"])
        .by_steps(),
    op("Loop")
        .since(1)
        .gives(Outputs::AsNamed)
        .takes(&["body"])
        .by_steps(),
    op("Optional").since(15).takes(&["type"]).mixing().by_steps(),
    op("OptionalGetElement").since(15).mixing().by_steps(),
    op("OptionalHasElement").since(15).mixing().by_steps(),
    op("Scan")
        .since(9)
        .gives(Outputs::AsNamed)
        .takes(&[
            "body",
            "num_scan_inputs",
            "scan_input_axes",
            "scan_input_directions",
            "scan_output_axes",
            "scan_output_directions",
        ])
        .by_steps(),
    op("SequenceAt").since(11).by_steps(),
    op("SequenceConstruct").since(11).by_steps(),
    op("SequenceEmpty").since(11).takes(&["dtype"]).by_steps(),
    op("SequenceErase").since(11).by_steps(),
    op("SequenceInsert").since(11).by_steps(),
    op("SequenceLength").since(11).by_steps(),
    op("SplitToSequence")
        .since(11)
        .takes(&["axis", "keepdims"])
        .by_steps(),
];
