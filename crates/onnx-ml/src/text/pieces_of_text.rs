//! The operators `StringConcat`, `StringSplit` and `RegexFullMatch`, which concatenate, split and match
//! strings.

use std::sync::Arc;

use onnx_tensor::prelude::*;

use crate::text::tokenizer::{Expression, expression};
use onnx_tensor::{cancelling::Pace, node::Node, operator::Compute, size};
use onnx_tensor::{
    elements::{elements, tensor},
    node::Attributes,
    operator::{Fact, Kernel, kernel},
};

/// Creates the operator `StringConcat`.
pub fn string_concat(_: &Node) -> Result<Box<dyn Compute>> {
    Ok(kernel(StringConcat))
}

/// Returns the string attribute `name`; an empty string if it is absent.
fn text<'a>(attributes: Attributes<'a>, name: &str) -> Result<&'a str> {
    let given = attributes.get(name).map_or(&[][..], |attribute| &attribute.s);
    std::str::from_utf8(given).with_context(|| format!("'{name}' is not UTF-8"))
}

fn expect_text(facts: &[Fact], count: usize) -> Result<()> {
    ensure!(
        facts.len() == count && facts.iter().all(|fact| fact.element_type == ElementType::String),
        "expected {count} inputs of strings"
    );
    Ok(())
}

#[derive(Debug)]
struct StringConcat;

impl Kernel for StringConcat {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        expect_text(inputs, 2)?;
        let shape = onnx_tensor::shapes::broadcast(&[&inputs[0].shape, &inputs[1].shape])?;
        Ok(vec![Fact::new(ElementType::String, shape)])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let shapes = [inputs[0].shape(), inputs[1].shape()];
        let shape: ShortVec<usize> = onnx_tensor::shapes::broadcast(&shapes)?;
        size::admit_shape(ElementType::String, &shape)?;
        // Maps each output element to its index in the input.
        let places = |input: &Tensor| -> Result<Vec<i64>> {
            let places = Pace::default().indices(input.len(), |at| at as i64)?;
            let places = Tensor::from_vec(input.shape(), places)?;
            places.broadcast_to(&shape)?.into_vec()
        };
        let (first, second) = (elements::<String>(&inputs[0])?, elements::<String>(&inputs[1])?);
        let (first_places, second_places) = (places(&inputs[0])?, places(&inputs[1])?);
        let pairs = || {
            let places = first_places.iter().zip(&second_places);
            places.map(|(&one, &other)| (&first[one as usize], &second[other as usize]))
        };
        let mut pace = Pace::default();
        let mut bytes = 0u64;
        for (first, second) in pairs() {
            pace.spend(4)?;
            bytes = bytes.saturating_add(size::TEXT + (first.len() + second.len()) as u64);
        }
        size::admit_texts(bytes)?;
        let mut made = Vec::with_capacity(first_places.len());
        for (first, second) in pairs() {
            pace.spend(16 + (first.len() + second.len()) as u64)?;
            made.push(format!("{first}{second}"));
        }
        Ok(smallvec![tensor(&shape, made)?])
    }
}

/// Creates the operator `StringSplit`.
pub fn string_split(node: &Node) -> Result<Box<dyn Compute>> {
    let attributes = Attributes(node);
    let most = match attributes.has("maxsplit") {
        true => Some(usize::try_from(attributes.int("maxsplit", 0))?),
        false => None,
    };
    Ok(kernel(StringSplit {
        delimiter: text(attributes, "delimiter")?.to_owned(),
        most,
    }))
}

#[derive(Debug)]
struct StringSplit {
    /// The delimiter; if it is empty, strings are split at runs of whitespace.
    delimiter: String,
    /// The maximum number of splits per string; `None` for no limit.
    most: Option<usize>,
}

impl StringSplit {
    /// Calls `take` with each part of `text`.
    fn cut<'t>(&self, text: &'t str, mut take: impl FnMut(&'t str)) {
        let most = self.most.unwrap_or(usize::MAX).saturating_add(1);
        if text.is_empty() {
            return;
        }
        if !self.delimiter.is_empty() {
            return text.splitn(most, &self.delimiter).for_each(take);
        }
        let mut rest = text.trim_matches(' ');
        let mut left = most;
        while !rest.is_empty() {
            left -= 1;
            let end = match left {
                0 => rest.len(),
                _ => rest.find(' ').unwrap_or(rest.len()),
            };
            take(&rest[..end]);
            rest = rest[end..].trim_start_matches(' ');
        }
    }
}

impl Kernel for StringSplit {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        expect_text(inputs, 1)?;
        let count = Dim::unknown();
        let mut parts = inputs[0].with(ElementType::String);
        parts.shape.push(count.to_dim());
        Ok(vec![parts, inputs[0].with(ElementType::I64)])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let texts = elements::<String>(&inputs[0])?;
        let mut pace = Pace::default();
        let mut counts = Vec::with_capacity(texts.len());
        let mut bytes = 0u64;
        for text in texts {
            pace.spend(16 + text.len() as u64)?;
            let mut count = 0i64;
            self.cut(text, |part| {
                count += 1;
                bytes += part.len() as u64;
            });
            counts.push(count);
        }
        let width = counts.iter().max().map_or(0, |&most| most as usize);
        let count = (texts.len() as u64).saturating_mul(width as u64);
        size::admit_texts(count.saturating_mul(size::TEXT).saturating_add(bytes))?;
        let mut made: Vec<String> = Vec::with_capacity(texts.len() * width);
        for (index, text) in texts.iter().enumerate() {
            pace.spend(16 * width as u64 + text.len() as u64)?;
            self.cut(text, |part| made.push(part.to_owned()));
            made.resize((index + 1) * width, String::new());
        }
        let shape = inputs[0].shape();
        let mut parts_shape = shape.to_vec();
        parts_shape.push(width);
        Ok(smallvec![tensor(&parts_shape, made)?, tensor(shape, counts)?])
    }
}

/// Creates the operator `RegexFullMatch`.
pub fn regex_full_match(node: &Node) -> Result<Box<dyn Compute>> {
    let pattern = text(Attributes(node), "pattern")?;
    // Compiles the pattern alone first, since the parentheses added below could turn an invalid pattern into
    // a valid one.
    expression(pattern)?;
    Ok(kernel(RegexFullMatch(expression(&format!(
        r"\A(?:{pattern})\z"
    ))?)))
}

#[derive(Debug)]
struct RegexFullMatch(Expression);

impl Kernel for RegexFullMatch {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        expect_text(inputs, 1)?;
        Ok(vec![inputs[0].with(ElementType::Bool)])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let mut pace = Pace::default();
        let mut made = Vec::with_capacity(inputs[0].len());
        for text in elements::<String>(&inputs[0])? {
            pace.spend(64 + 8 * text.len() as u64)?;
            made.push(self.0.within(text)?.is_match(text));
        }
        Ok(smallvec![tensor(inputs[0].shape(), made)?])
    }
}
