//! ONNX Runtime's `LinearAttention`: each head has a state matrix. Each token adds the outer product of its
//! key and value to the state, and queries are multiplied by the state. Mamba-like decoders use linear
//! attention instead of attention over a cache.

use std::sync::Arc;

use onnx_tensor::prelude::*;

use onnx_tensor::{
    cancelling::Pace,
    elements::elements,
    faults::{Unsupported, ensure_input},
    node::{Attributes, Node},
    operator::{Compute, Fact, Kernel, kernel},
    shapes::zeros,
};

/// Builds the operator `LinearAttention`.
pub fn linear_attention(node: &Node) -> Result<Box<dyn Compute>> {
    let attributes = Attributes(node);
    let heads = |name: &str| -> Result<usize> {
        let heads = usize::try_from(attributes.int(name, 0)).ok();
        let heads = heads.filter(|heads| (1..1 << 24).contains(heads));
        heads.with_context(|| format!("{name} must be a positive number"))
    };
    let (is_gated, is_delta) = match attributes.text("update_rule", "gated_delta") {
        "linear" => (false, false),
        "gated" => (true, false),
        "delta" => (false, true),
        "gated_delta" => (true, true),
        other => bail!("the update_rule is {other:?}, expected 'linear', 'gated', 'delta' or 'gated_delta'"),
    };
    if attributes.int("state_window", 0) != 0 {
        bail!(Unsupported::Anywhere(
            "the attribute 'state_window' is not 0, only 0 is supported".to_owned()
        ));
    }
    let needed = |is_needed: bool, index: usize, name: &str| match is_needed {
        true => attributes
            .position(index)
            .with_context(|| format!("the input {name} is not given"))
            .map(Some),
        false => Ok(None),
    };
    let (queries, values) = (heads("q_num_heads")?, heads("kv_num_heads")?);
    ensure!(
        queries.is_multiple_of(values) || values.is_multiple_of(queries),
        "q_num_heads is {queries} and kv_num_heads {values}, expected that one divides the other"
    );
    Ok(kernel(LinearAttention {
        queries,
        values,
        scale: attributes.float("scale", 0.0),
        past: attributes.position(3),
        decay: needed(is_gated, 4, "decay")?,
        rate: needed(is_delta, 5, "beta")?,
    }))
}

#[derive(Debug)]
struct LinearAttention {
    /// Number of query heads (`queries`) and of value heads (`values`).
    queries: usize,
    values: usize,
    /// The scale; 0 stands for the inverse square root of the key size.
    scale: f32,
    past: Option<usize>,
    /// Input index of the logarithmic decay, applied to the state before each token.
    decay: Option<usize>,
    /// Input index of beta for the delta rule, which adds beta times the difference between a value and the
    /// state's prediction. Without beta, values are added directly.
    rate: Option<usize>,
}

/// The sizes of the inputs of one run.
struct Sizes {
    batch: usize,
    tokens: usize,
    /// Number of key heads.
    keys: usize,
    /// Size of a key (`depth`) and of a value (`width`).
    depth: usize,
    width: usize,
}

impl LinearAttention {
    /// Returns the head sizes, from the last dimensions of queries, keys and values.
    fn widths(&self, queries: usize, keys: usize, values: usize) -> Result<[usize; 3]> {
        let depth = queries / self.queries;
        let fits = queries.is_multiple_of(self.queries)
            && depth > 0
            && keys.is_multiple_of(depth)
            && keys > 0
            && self.values.is_multiple_of(keys / depth)
            && values.is_multiple_of(self.values);
        ensure_input!(
            fits,
            "queries of {queries}, keys of {keys} and values of {values} numbers for {} and {} heads",
            self.queries,
            self.values
        );
        Ok([keys / depth, depth, values / self.values])
    }

    fn sizes(&self, inputs: &[Arc<Tensor>]) -> Result<Sizes> {
        let (query, key, value) = (inputs[0].shape(), inputs[1].shape(), inputs[2].shape());
        let [keys, depth, width] = self.widths(query[2], key[2], value[2])?;
        let [batch, tokens] = [query[0], query[1]];
        let of = |place: Option<usize>| place.map(|place| inputs[place].shape());
        let has_tokens = |shape: &[usize]| shape[..2] == [batch, tokens];
        let decays = [self.values, self.values * depth];
        ensure_input!(
            has_tokens(key)
                && has_tokens(value)
                && of(self.past).is_none_or(|past| past == [batch, self.values, depth, width])
                && of(self.decay).is_none_or(|decay| has_tokens(decay) && decays.contains(&decay[2]))
                && of(self.rate).is_none_or(|rate| has_tokens(rate) && [1, self.values].contains(&rate[2])),
            "keys of {key:?}, values of {value:?}, a past_state of {:?}, a decay of {:?} and a beta of {:?} for queries of {query:?}",
            of(self.past),
            of(self.decay),
            of(self.rate)
        );
        Ok(Sizes {
            batch,
            tokens,
            keys,
            depth,
            width,
        })
    }
}

impl Kernel for LinearAttention {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        let [query, key, value, ..] = inputs else {
            bail!("expected 3 inputs or more, found {}", inputs.len());
        };
        if inputs.iter().any(|fact| fact.element_type != ElementType::F32) {
            bail!(Unsupported::Here("is supported for FP32 only".to_owned()));
        }
        let has_rank =
            |place: Option<usize>, rank: usize| place.is_none_or(|place| inputs[place].rank() == rank);
        ensure_input!(
            [query, key, value].iter().all(|fact| fact.rank() == 3)
                && has_rank(self.past, 4)
                && has_rank(self.decay, 3)
                && has_rank(self.rate, 3),
            "needs a past_state of 4 dimensions, and all other inputs of 3"
        );
        let numbers = [query, key, value].map(|fact| fact.shape[2].to_usize());
        let (depth, width) = match numbers {
            [Some(query), Some(key), Some(value)] => {
                let [_, depth, width] = self.widths(query, key, value)?;
                (depth.to_dim(), width.to_dim())
            }
            _ => (Dim::unknown(), Dim::unknown()),
        };
        let [batch, tokens] = [0, 1].map(|axis| query.shape[axis]);
        let row = width * self.queries.max(self.values) as i64;
        Ok(vec![
            Fact::new(ElementType::F32, [batch, tokens, row]),
            Fact::new(ElementType::F32, [batch, self.values.to_dim(), depth, width]),
        ])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let sizes = self.sizes(inputs)?;
        let Sizes {
            batch,
            tokens,
            depth,
            width,
            ..
        } = sizes;
        let heads = self.queries.max(self.values);
        let mut made = zeros(ElementType::F32, &[batch, tokens, heads * width])?;
        let state_shape = [batch, self.values, depth, width];
        let mut states = match self.past {
            Some(past) => (*inputs[past]).clone(),
            None => zeros(ElementType::F32, &state_shape)?,
        };
        if states.is_empty() {
            return Ok(smallvec![made, states]);
        }
        let of = |place: Option<usize>| place.map(|place| elements::<f32>(&inputs[place])).transpose();
        let given = Inputs {
            queries: elements(&inputs[0])?,
            keys: elements(&inputs[1])?,
            values: elements(&inputs[2])?,
            decay: of(self.decay)?,
            rate: of(self.rate)?,
        };
        let scale = match self.scale {
            0.0 => 1.0 / (depth as f32).sqrt(),
            scale => scale,
        };
        let y = made.as_slice_mut::<f32>()?;
        let mut pace = Pace::default();
        let mut change = vec![0.0; width];
        let states_of_heads = states.as_slice_mut::<f32>()?.chunks_exact_mut(depth * width);
        for (index, state) in states_of_heads.enumerate() {
            let (batch, head) = (index / self.values, index % self.values);
            for token in 0..tokens {
                let at = batch * tokens + token;
                self.update(state, &given, &sizes, (at, head), (&mut change, &mut pace))?;
                for query_head in self.heads_of(head) {
                    let query = match self.queries >= self.values {
                        true => query_head,
                        false => head / (self.values / self.queries),
                    };
                    let query = &given.queries[(at * self.queries + query) * depth..][..depth];
                    let y = &mut y[(at * heads + query_head) * width..][..width];
                    for (query, state) in query.iter().zip(state.chunks_exact(width)) {
                        pace.spend(1 + width as u64 / 2)?;
                        let query = query * scale;
                        y.iter_mut().zip(state).for_each(|(y, state)| *y += query * state);
                    }
                }
            }
        }
        Ok(smallvec![made, states])
    }
}

/// The elements of the inputs of one run.
struct Inputs<'i> {
    queries: &'i [f32],
    keys: &'i [f32],
    values: &'i [f32],
    decay: Option<&'i [f32]>,
    rate: Option<&'i [f32]>,
}

impl LinearAttention {
    /// Returns the output heads that use the value head `head`.
    fn heads_of(&self, head: usize) -> std::ops::Range<usize> {
        let shared = (self.queries / self.values).max(1);
        head * shared..(head + 1) * shared
    }

    /// Updates the state of head `head` with token `at`. `change` is a buffer of the size of a value.
    fn update(
        &self,
        state: &mut [f32],
        given: &Inputs<'_>,
        sizes: &Sizes,
        (at, head): (usize, usize),
        (change, pace): (&mut [f32], &mut Pace),
    ) -> Result<()> {
        let Sizes {
            keys, depth, width, ..
        } = *sizes;
        let key_head = head / (self.values / keys);
        let key = &given.keys[(at * keys + key_head) * depth..][..depth];
        let value = &given.values[(at * self.values + head) * width..][..width];
        if let Some(decay) = given.decay {
            let count = decay.len() / (sizes.batch * sizes.tokens) / self.values;
            let decay = &decay[(at * self.values + head) * count..][..count];
            for (row, state) in state.chunks_exact_mut(width).enumerate() {
                pace.spend(1 + width as u64 / 2)?;
                let factor = decay[if count == 1 { 0 } else { row }].exp();
                state.iter_mut().for_each(|state| *state *= factor);
            }
        }
        match given.rate {
            None => change.copy_from_slice(value),
            Some(rate) => {
                let count = rate.len() / (sizes.batch * sizes.tokens);
                let rate = rate[at * count + if count == 1 { 0 } else { head }];
                change.fill(0.0);
                for (key, state) in key.iter().zip(state.chunks_exact(width)) {
                    pace.spend(1 + width as u64 / 2)?;
                    change
                        .iter_mut()
                        .zip(state)
                        .for_each(|(change, state)| *change += key * state);
                }
                change
                    .iter_mut()
                    .zip(value)
                    .for_each(|(change, value)| *change = rate * (value - *change));
            }
        }
        for (key, state) in key.iter().zip(state.chunks_exact_mut(width)) {
            pace.spend(1 + width as u64 / 2)?;
            state
                .iter_mut()
                .zip(&*change)
                .for_each(|(state, change)| *state += key * change);
        }
        Ok(())
    }
}
