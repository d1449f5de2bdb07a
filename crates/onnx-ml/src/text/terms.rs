//! Text operators of scikit-learn's vectorizers: `StringNormalizer` and `TfIdfVectorizer`. Case conversion
//! follows Unicode, independent of the locale.

use std::{
    collections::{HashMap, HashSet},
    ops::RangeInclusive,
    sync::Arc,
};

use onnx_tensor::prelude::*;

use onnx_tensor::{
    cancelling::Pace,
    faults::{BadInput, Limit, Unsupported},
    node::Node,
    operator::Compute,
    size,
};
use onnx_tensor::{
    elements::{elements, tensor},
    node::Attributes,
    operator::{Fact, Kernel, kernel},
};

/// Creates the operator `StringNormalizer`, which changes the case of words and removes stop words.
pub fn string_normalizer(node: &Node) -> Result<Box<dyn Compute>> {
    let attributes = Attributes(node);
    let case = match attributes.text("case_change_action", "NONE") {
        "LOWER" => Case::Lower,
        "UPPER" => Case::Upper,
        "NONE" => Case::Same,
        other => bail!("the case_change_action is {other:?}, expected NONE, LOWER or UPPER"),
    };
    let is_case_sensitive = attributes.int("is_case_sensitive", 0) != 0;
    let stopwords = attributes.texts("stopwords")?.into_iter();
    let stopwords = stopwords.map(|word| {
        if is_case_sensitive {
            word
        } else {
            word.to_lowercase()
        }
    });
    Ok(kernel(StringNormalizer {
        case,
        is_case_sensitive,
        stopwords: stopwords.collect(),
    }))
}

#[derive(Clone, Copy, Debug)]
enum Case {
    Same,
    Lower,
    Upper,
}

#[derive(Debug)]
struct StringNormalizer {
    case: Case,
    is_case_sensitive: bool,
    stopwords: HashSet<String>,
}

impl Kernel for StringNormalizer {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        let [input] = inputs else {
            bail!("expected 1 input, found {}", inputs.len());
        };
        if input.element_type != ElementType::String || !matches!(input.rank(), 1 | 2) {
            bail!(Unsupported::Anywhere(
                "takes strings of one or two dimensions".to_owned()
            ));
        }
        let mut fact = input.with(ElementType::String);
        if !self.stopwords.is_empty() {
            let count = Dim::unknown();
            let last = fact.rank() - 1;
            fact.shape[last] = count.to_dim();
        }
        Ok(vec![fact])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let mut shape: Vec<usize> = inputs[0].shape().to_vec();
        if let [rows, _] = *shape
            && rows != 1
        {
            bail!(BadInput(format!("one row of words is expected, not {rows}")));
        }
        let is_kept = |word: &String| match self.is_case_sensitive {
            true => !self.stopwords.contains(word),
            false => !self.stopwords.contains(&word.to_lowercase()),
        };
        let given = elements::<String>(&inputs[0])?;
        // Case conversion may triple the byte length of a character.
        let contents = given.iter().map(|word| size::TEXT + 3 * word.len() as u64);
        size::admit_texts(contents.fold(0, u64::saturating_add))?;
        let mut pace = Pace::default();
        let mut words: Vec<String> = Vec::with_capacity(given.len());
        for word in given {
            pace.spend(16 + word.len() as u64)?;
            if is_kept(word) {
                words.push(match self.case {
                    Case::Same => word.clone(),
                    Case::Lower => word.to_lowercase(),
                    Case::Upper => word.to_uppercase(),
                });
            }
        }
        // ONNX defines an empty result as one empty string.
        if words.is_empty() && !self.stopwords.is_empty() {
            words.push(String::new());
        }
        if let Some(last) = shape.last_mut() {
            *last = words.len();
        }
        Ok(smallvec![tensor(&shape, words)?])
    }
}

/// Creates the operator `TfIdfVectorizer`, which counts n-grams.
pub fn tf_idf(node: &Node) -> Result<Box<dyn Compute>> {
    let attributes = Attributes(node);
    let mode = match attributes.text("mode", "") {
        "TF" => Mode::Tf,
        "IDF" => Mode::Idf,
        "TFIDF" => Mode::TfIdf,
        other => bail!("the attribute 'mode' is {other:?}, expected TF, IDF or TFIDF"),
    };
    let number = |name: &str| -> Result<usize> { Ok(usize::try_from(attributes.int(name, 0))?) };
    let (shortest, longest) = (number("min_gram_length")?, number("max_gram_length")?);
    let skips = number("max_skip_count")?;
    ensure!(
        (1..=longest).contains(&shortest),
        "min_gram_length is {shortest} and max_gram_length {longest}, expected 1 or more, in ascending order"
    );
    if longest > MAX_GRAM || skips > MAX_SKIPS {
        bail!(Limit(format!(
            "max_gram_length is {longest} and max_skip_count {skips}, beyond the limits of {MAX_GRAM} and {MAX_SKIPS}"
        )));
    }
    let texts = attributes.texts("pool_strings")?;
    let pool: Vec<Word> = match texts.is_empty() {
        false => texts.into_iter().map(Word::Text).collect(),
        true => attributes
            .ints("pool_int64s")
            .iter()
            .map(|&word| Word::Number(word))
            .collect(),
    };
    let columns = attributes.ints("ngram_indexes");
    let lengths = shortest..=longest;
    let grams = indexed_grams(&pool, attributes.ints("ngram_counts"), columns.len(), &lengths)?;
    let columns: Vec<usize> = columns
        .iter()
        .map(|&column| usize::try_from(column))
        .collect::<Result<_, _>>()?;
    let width = columns.iter().max().map_or(0, |most| most + 1);
    if width > MAX_WIDTH {
        bail!(Limit(format!(
            "the ngram_indexes give {width} columns, beyond the limit of {MAX_WIDTH}"
        )));
    }
    let weights = attributes.floats("weights").to_vec();
    ensure!(
        weights.is_empty() || weights.len() == columns.len(),
        "{} weights for {} sequences",
        weights.len(),
        columns.len()
    );
    Ok(kernel(TfIdf {
        mode,
        lengths,
        skips,
        grams,
        columns,
        weights,
        width,
    }))
}

/// Splits the pool into n-grams, and returns the indices of those with one of `lengths`. The n-grams of
/// length `n` start at `starts[n - 1]`. Their total number must be `count`.
fn indexed_grams(
    pool: &[Word],
    starts: &[i64],
    count: usize,
    lengths: &RangeInclusive<usize>,
) -> Result<HashMap<Vec<Word>, usize>> {
    let starts: Vec<usize> = starts
        .iter()
        .map(|&start| usize::try_from(start))
        .collect::<Result<_, _>>()?;
    ensure!(
        starts.is_sorted() && starts.last().is_none_or(|&last| last <= pool.len()),
        "ngram_counts has an index outside of the pool of strings or numbers"
    );
    let mut grams: HashMap<Vec<Word>, usize> = HashMap::new();
    let mut gram = 0;
    for (index, &start) in starts.iter().enumerate() {
        let length = index + 1;
        let end = starts.get(length).copied().unwrap_or(pool.len());
        ensure!(
            (end - start) % length == 0,
            "the pool of strings or numbers ends within a sequence of ngram_counts"
        );
        for words in pool[start..end].chunks_exact(length) {
            ensure!(
                gram < count,
                "ngram_indexes has fewer columns than there are sequences"
            );
            if lengths.contains(&length) {
                grams.entry(words.to_vec()).or_insert(gram);
            }
            gram += 1;
        }
    }
    ensure!(gram == count, "{count} columns for {gram} sequences");
    Ok(grams)
}

/// The maximum length of an n-gram, and the maximum number of skipped words between two of its words.
const MAX_GRAM: usize = 64;
const MAX_SKIPS: usize = 64;
/// The maximum number of columns in the output.
const MAX_WIDTH: usize = 1 << 24;

/// The number of [`Pace`] steps charged for copying and hashing one word of an n-gram.
const STEPS_OF_A_WORD: u64 = 16;

#[derive(Clone, Copy, Debug)]
enum Mode {
    Tf,
    Idf,
    TfIdf,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Word {
    Text(String),
    Number(i64),
}

#[derive(Debug)]
struct TfIdf {
    mode: Mode,
    lengths: std::ops::RangeInclusive<usize>,
    skips: usize,
    /// The index of each n-gram in `columns` and `weights`.
    grams: HashMap<Vec<Word>, usize>,
    /// The output column of each n-gram.
    columns: Vec<usize>,
    /// The weight of each n-gram; empty if all are 1.
    weights: Vec<f32>,
    width: usize,
}

impl TfIdf {
    /// Counts the n-grams of `words`, weighted according to the mode.
    fn count(&self, words: &[Word], pace: &mut Pace) -> Result<Vec<f32>> {
        let mut counts = vec![0f32; self.width];
        pace.spend(self.width as u64)?;
        for length in self.lengths.clone() {
            // An n-gram of one word has no gaps.
            let gaps = if length == 1 { 1 } else { self.skips + 1 };
            for gap in 1..=gaps {
                let reach = (length - 1) * gap + 1;
                for start in 0..(words.len() + 1).saturating_sub(reach) {
                    pace.spend(STEPS_OF_A_WORD * length as u64)?;
                    let gram: Vec<Word> = words[start..].iter().step_by(gap).take(length).cloned().collect();
                    if let Some(&gram) = self.grams.get(&gram) {
                        let weight = self.weights.get(gram).copied().unwrap_or(1.0);
                        let count = &mut counts[self.columns[gram]];
                        match self.mode {
                            Mode::Tf => *count += 1.0,
                            Mode::Idf => *count = weight,
                            Mode::TfIdf => *count += weight,
                        }
                    }
                }
            }
        }
        Ok(counts)
    }
}

impl Kernel for TfIdf {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        let [input] = inputs else {
            bail!("expected 1 input, found {}", inputs.len());
        };
        let is_known = matches!(
            input.element_type,
            ElementType::String | ElementType::I32 | ElementType::I64
        );
        if !is_known || !matches!(input.rank(), 1 | 2) {
            bail!(Unsupported::Anywhere(
                "takes strings or integers of one or two dimensions".to_owned()
            ));
        }
        let mut shape: ShortVec<Dim> = input.shape[..input.rank() - 1].iter().copied().collect();
        shape.push(self.width.to_dim());
        Ok(vec![Fact::new(ElementType::F32, shape)])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let mut shape: Vec<usize> = inputs[0].shape().to_vec();
        let beside = inputs[0].len() * (size_of::<Word>() + size_of::<i64>());
        size::admit_now(size::of_value(&inputs[0]).saturating_add(beside as u64))?;
        let mut pace = Pace::default();
        let words: Vec<Word> = match inputs[0].element_type() {
            ElementType::String => {
                pace.map(elements::<String>(&inputs[0])?, |word| Word::Text(word.clone()))?
            }
            _ => {
                let numbers = inputs[0].cast_to::<i64>()?;
                pace.map(elements::<i64>(&numbers)?, |&word| Word::Number(word))?
            }
        };
        let length = shape.pop().unwrap_or(0);
        let rows: usize = shape.iter().product();
        let bytes = (rows as u64).saturating_mul(self.width as u64).saturating_mul(4);
        if bytes > size::MAX_BYTES {
            bail!(BadInput(format!(
                "{rows} rows of {} numbers are too many",
                self.width
            )));
        }
        let mut counts = Vec::with_capacity(rows * self.width);
        for row in 0..rows {
            counts.extend(self.count(&words[row * length..(row + 1) * length], &mut pace)?);
        }
        shape.push(self.width);
        Ok(smallvec![tensor(&shape, counts)?])
    }
}
