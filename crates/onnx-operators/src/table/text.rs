//! Rows of the operator table for string operators.

use crate::operator::{Operator, Outputs, contributed, op};

pub(super) const ROWS: &[Operator] = &[
    op("RegexFullMatch").since(20).takes(&["pattern"]).elementwise(),
    op("StringConcat").since(20).elementwise(),
    op("StringNormalizer")
        .since(10)
        .takes(&["case_change_action", "is_case_sensitive", "locale", "stopwords"])
        .sizes_unknown(),
    op("StringSplit")
        .since(20)
        .gives(Outputs::Exactly(2))
        .takes(&["delimiter", "maxsplit"])
        .sizes_unknown(),
    op("TfIdfVectorizer").since(9).takes(&[
        "max_gram_length",
        "max_skip_count",
        "min_gram_length",
        "mode",
        "ngram_counts",
        "ngram_indexes",
        "pool_int64s",
        "pool_strings",
        "weights",
    ]),
    contributed("Tokenizer")
        .takes(&[
            "mark",
            "mincharnum",
            "pad_value",
            "separators",
            "stopwords",
            "tokenexp",
        ])
        .sizes_unknown(),
];
