//! Describes the capabilities of formats as data, and checks plans against them.

use tensor_core::{DType, QuotedName, Shape, TensorSpec};

use crate::{
    Error, ErrorKind, Layout, Limits, Metadata, NameTable, OpaqueDType, Plan, PlannedEntry, ReadOptions,
    check_name,
};

/// The capabilities of a format: the dtypes, shapes, names and metadata that its files can contain.
/// [`Plan::check`] checks a plan against these capabilities, and tools can display them.
///
/// Limits that depend on a tensor's position in the file, such as 32-bit offsets, are checked by the writer.
///
/// ```
/// use fmt_core::{Capabilities, ErrorKind, Limits, Plan, PlannedEntry, Texts};
/// use tensor_core::{DType, Shape, TensorSpec};
///
/// const PIXELS: Capabilities = Capabilities {
///     dtypes: &[DType::U8],
///     dtypes_in_words: "u8",
///     metadata: Texts::Only(&["author"]),
///     ..Capabilities::NUMBERS
/// };
/// let weights = TensorSpec::new(DType::F32, Shape::new(&[2, 3])?)?;
/// let plan = Plan { entries: vec![PlannedEntry::dense("w", weights)], ..Plan::default() };
/// let error = plan.check(&PIXELS, &Limits::default()).unwrap_err();
/// assert_eq!(error.to_string(), "tensor 'w': the dtype: expected u8, found f32");
/// # Ok::<(), tensor_core::SpecError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Capabilities {
    /// Numeric dtypes that tensors can have.
    pub dtypes: &'static [DType],
    /// Names of the numeric dtypes, as error messages list them.
    pub dtypes_in_words: &'static str,
    /// Returns whether a tensor of this opaque dtype and shape can be stored.
    pub opaque: fn(&OpaqueDType, &Shape) -> bool,
    /// Whether sparse tensors can be stored.
    pub sparse: bool,
    /// Whether tensors can share bytes ([`PlannedEntry::same_as`]).
    pub shares_bytes: bool,
    /// Metadata keys that a file can have.
    pub metadata: Texts,
    /// Attribute keys that a tensor can have.
    pub attributes: Texts,
    /// Valid tensor names.
    pub names: Names,
    /// Maximum number of tensors, if the format limits it.
    pub tensors: Option<u64>,
    /// Maximum rank of a tensor, if the format limits it.
    pub rank: Option<u64>,
    /// Maximum size of one dimension, in elements.
    pub dim: u64,
    /// Maximum size of a tensor in bytes.
    pub tensor_bytes: u64,
    /// Pairs of a rule's name here, such as [`Capabilities::METADATA`], and its name in docs/formats
    /// ([`Error::rename_rule`]).
    pub rules: &'static [(&'static str, &'static str)],
}

/// Which string attributes, of a tensor or of the file, a format can store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Texts {
    /// No strings at all.
    None,
    /// All strings that the writer can encode.
    Any,
    /// Only strings with these keys.
    Only(&'static [&'static str]),
}

/// Which tensor names a format can store.
#[derive(Clone, Copy, Debug)]
pub enum Names {
    /// No names: tensors are identified by their index.
    Numbers,
    /// Unique names that pass this check.
    Checked(fn(&str, &Limits) -> Result<(), Error>),
}

impl Names {
    /// Names accepted by [`check_name`]: of limited length, without zero bytes.
    pub const TEXTS: Self = Self::Checked(|name, limits| {
        let options = ReadOptions {
            limits: limits.clone(),
            ..ReadOptions::default()
        };
        check_name(name, &options)
    });
}

impl Capabilities {
    /// Dense tensors of all numeric dtypes, up to 2^63 bytes, with names but no attributes or metadata.
    pub const NUMBERS: Self = Self {
        dtypes: &DType::ALL,
        dtypes_in_words: "a number",
        opaque: |_, _| false,
        sparse: false,
        shares_bytes: false,
        metadata: Texts::None,
        attributes: Texts::None,
        names: Names::TEXTS,
        tensors: None,
        rank: None,
        dim: u64::MAX,
        tensor_bytes: Self::LONGEST,
        rules: &[],
    };
    /// Maximum total size of a file's tensors in bytes, because file lengths are signed 64-bit integers.
    pub const LONGEST: u64 = i64::MAX as u64;

    /// Name of the rule about the metadata that a file can have.
    pub const METADATA: &str = "metadata";
    /// Name of the rule about the attributes that a tensor can have.
    pub const ATTRIBUTES: &str = "attributes";
    /// Name of the rule about valid tensor names.
    pub const NAMES: &str = "names";
    /// Name of the rule that no two tensors have the same name.
    pub const DUPLICATES: &str = "duplicates";
    /// Name of the rule about the dtypes that can be stored.
    pub const DTYPES: &str = "dtypes";
    /// Name of the rule about the layouts that can be stored: dense or sparse.
    pub const LAYOUTS: &str = "layouts";
    /// Name of the rule about limits of readers: the number of tensors and of dimensions.
    pub const LIMITS: &str = "limits";
    /// Name of the rule about the sizes of a dimension, of a tensor, and of all tensors together.
    pub const SIZES: &str = "sizes";

    /// Checks a tensor's dtype and shape.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] or [`ErrorKind::TooLarge`] when the format cannot store the tensor.
    pub fn check_tensor(&self, spec: &TensorSpec, limits: &Limits) -> Result<(), Error> {
        let checked = self.check_shape(spec.shape(), limits).and_then(|()| {
            self.check_size(spec.byte_len())?;
            if self.dtypes.contains(&spec.dtype()) {
                return Ok(());
            }
            let error = Error::new(ErrorKind::Unsupported, "the dtype").rule(Self::DTYPES);
            Err(error.expected(self.dtypes_in_words).found(spec.dtype()))
        });
        checked.map_err(|error| error.rename_rule(self.rules))
    }

    /// Checks a tensor's name; does not look for duplicates.
    ///
    /// # Errors
    /// [`ErrorKind::BadName`] when the name is invalid.
    pub fn check_name(&self, name: &str, limits: &Limits) -> Result<(), Error> {
        match self.names {
            Names::Numbers => Ok(()),
            Names::Checked(check) => {
                let checked = check(name, limits);
                checked.map_err(|error| error.rule(Self::NAMES).rename_rule(self.rules))
            }
        }
    }

    fn check_shape(&self, shape: &Shape, limits: &Limits) -> Result<(), Error> {
        let rank = shape.rank() as u64;
        if let Some(most) = self.rank.filter(|most| rank > *most) {
            let error = Error::new(ErrorKind::Unsupported, "the rank").rule(Self::SIZES);
            return Err(error
                .expected(format_args!("at most {most} dimensions, the format's limit"))
                .found(rank));
        }
        if rank > limits.rank {
            return Err(beyond("the rank", limits.rank, rank));
        }
        if let Some(dim) = shape.dims().iter().find(|dim| **dim > self.dim) {
            let error = Error::new(ErrorKind::TooLarge, "a dimension").rule(Self::SIZES);
            let most = self.dim;
            return Err(error
                .expected(format_args!("at most {most}, the format's limit"))
                .found(dim));
        }
        Ok(())
    }

    fn check_size(&self, len: u64) -> Result<(), Error> {
        if len <= self.tensor_bytes {
            return Ok(());
        }
        let error = Error::new(ErrorKind::TooLarge, "the size of the data").rule(Self::SIZES);
        Err(match self.tensor_bytes {
            Self::LONGEST => error.expected("less than 2^63 bytes").found(len),
            most => error
                .expected(format_args!(
                    "at most {most} bytes, the format's limit; split the tensor"
                ))
                .found(len),
        })
    }

    fn check_entry(&self, entry: &PlannedEntry, limits: &Limits) -> Result<(), Error> {
        self.check_name(&entry.name, limits)?;
        self.attributes
            .check(&entry.attributes, "attribute", Self::ATTRIBUTES, "none")?;
        if entry.layout != Layout::Dense && !(self.sparse && matches!(entry.layout, Layout::Coo { .. })) {
            let error = Error::new(ErrorKind::Unsupported, "the layout").rule(Self::LAYOUTS);
            let expected = match self.sparse {
                true => "dense or COO",
                false => "dense; store indices and values as two tensors",
            };
            return Err(error.expected(expected).found(&entry.layout));
        }
        let Some((dtype, shape)) = &entry.opaque else {
            return self.check_tensor(&entry.spec, limits);
        };
        if !(self.opaque)(dtype, shape) {
            return Err(no_place("the dtype", Self::DTYPES).found(dtype));
        }
        self.check_shape(shape, limits)?;
        self.check_size(entry.spec.byte_len())
    }
}

impl Texts {
    fn check(self, texts: &Metadata, what: &str, rule: &'static str, none: &str) -> Result<(), Error> {
        let (has, expected) = match self {
            Self::Any => return Ok(()),
            Self::None => (&[][..], none.to_owned()),
            Self::Only(keys) => {
                let quoted = keys.iter().map(|key| QuotedName(key).to_string());
                (keys, format!("only {}", quoted.collect::<Vec<_>>().join(", ")))
            }
        };
        match texts.keys().find(|key| !has.contains(&key.as_str())) {
            Some(key) => Err(no_place(&format!("the {what} {}", QuotedName(key)), rule).expected(expected)),
            None => Ok(()),
        }
    }
}

impl Plan {
    /// Checks that a format with `capabilities` can store the plan, in a file that readers with `limits`
    /// accept.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for contents that cannot be stored, [`ErrorKind::TooLarge`],
    /// [`ErrorKind::BadName`] and [`ErrorKind::Duplicate`]. The error names the broken rule of the format's
    /// page.
    pub fn check(&self, capabilities: &Capabilities, limits: &Limits) -> Result<(), Error> {
        let checked = self.check_all(capabilities, limits);
        checked.map_err(|error| error.rename_rule(capabilities.rules))
    }

    fn check_all(&self, capabilities: &Capabilities, limits: &Limits) -> Result<(), Error> {
        let none = match capabilities.attributes {
            Texts::Any => "none; use attributes of single tensors",
            _ => "none",
        };
        let metadata = capabilities.metadata;
        metadata.check(&self.metadata, "metadata", Capabilities::METADATA, none)?;
        let count = self.entries.len() as u64;
        if let Some(most) = capabilities.tensors.filter(|most| count != *most) {
            let error =
                Error::new(ErrorKind::Unsupported, "the number of tensors").rule(Capabilities::LIMITS);
            return Err(error
                .expected(format_args!("{most}, the format's limit"))
                .found(count));
        }
        if count > limits.tensors {
            return Err(beyond("the number of tensors", limits.tensors, count));
        }
        let mut total = 0u64;
        for (number, entry) in self.entries.iter().enumerate() {
            let checked = capabilities.check_entry(entry, limits);
            checked.map_err(|error| error.of_tensor(&entry.name))?;
            if matches!(capabilities.names, Names::Numbers) && entry.name != number.to_string() {
                let error =
                    Error::new(ErrorKind::BadName, "the format has no names").rule(Capabilities::NAMES);
                return Err(error
                    .of_tensor(&entry.name)
                    .expected(format_args!("'{number}', its number in the file")));
            }
            if entry.sharer(self, number)?.is_some() && !capabilities.shares_bytes {
                let error = no_place("bytes that tensors share", Capabilities::LAYOUTS);
                return Err(error.of_tensor(&entry.name));
            }
            let sum = entry.byte_len().and_then(|len| total.checked_add(len));
            total = sum.filter(|sum| *sum <= Capabilities::LONGEST).ok_or_else(|| {
                let error =
                    Error::new(ErrorKind::TooLarge, "the data of all tensors").rule(Capabilities::SIZES);
                error.of_tensor(&entry.name).expected("less than 2^63 bytes")
            })?;
        }
        let name = |number: u32| &*self.entries[number as usize].name;
        match NameTable::of(self.entries.len(), name) {
            (_, Some((_, twice))) => {
                let error = Error::new(ErrorKind::Duplicate, "the name is given twice");
                Err(error.of_tensor(name(twice)).rule(Capabilities::DUPLICATES))
            }
            _ => Ok(()),
        }
    }
}

fn no_place(what: &str, rule: &'static str) -> Error {
    Error::new(ErrorKind::Unsupported, format!("the format cannot store {what}")).rule(rule)
}

fn beyond(what: &str, most: u64, found: u64) -> Error {
    let error = Error::new(ErrorKind::TooLarge, what).rule(Capabilities::LIMITS);
    error
        .expected(format_args!("at most {most}, the limit of readers"))
        .found(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Capabilities = Capabilities {
        dtypes: &[DType::U8, DType::U16],
        dtypes_in_words: "u8 or u16",
        attributes: Texts::Any,
        rank: Some(2),
        dim: 1000,
        tensor_bytes: 1500,
        rules: &[(Capabilities::SIZES, "X1"), (Capabilities::DUPLICATES, "X2")],
        ..Capabilities::NUMBERS
    };

    fn entry(name: &str, dtype: DType, dims: &[u64]) -> PlannedEntry {
        PlannedEntry::dense(name, TensorSpec::new(dtype, Shape::new(dims).unwrap()).unwrap())
    }

    fn checked(entries: Vec<PlannedEntry>, capabilities: &Capabilities) -> Result<(), (ErrorKind, String)> {
        let plan = Plan {
            entries,
            ..Plan::default()
        };
        let checked = plan.check(capabilities, &Limits::default());
        checked.map_err(|error| (error.kind(), error.to_string()))
    }

    #[test]
    fn what_fits_and_what_does_not() {
        let told = |entry| checked(vec![entry], &SMALL).map_err(|(kind, _)| kind);
        assert_eq!(told(entry("a", DType::U16, &[3, 2])), Ok(()));
        assert_eq!(told(entry("a", DType::F32, &[3])), Err(ErrorKind::Unsupported));
        assert_eq!(
            told(entry("a", DType::U8, &[1, 1, 1])),
            Err(ErrorKind::Unsupported)
        );
        assert_eq!(told(entry("a", DType::U8, &[1001])), Err(ErrorKind::TooLarge));
        assert_eq!(told(entry("a", DType::U16, &[751])), Err(ErrorKind::TooLarge));
        assert_eq!(told(entry("a\0", DType::U8, &[])), Err(ErrorKind::BadName));
        let coo = PlannedEntry {
            layout: Layout::Coo { nnz: 1 },
            ..entry("a", DType::U8, &[3])
        };
        assert_eq!(told(coo), Err(ErrorKind::Unsupported));
        let blocks = OpaqueDType::new("Q8_0", 32, 34);
        let opaque = PlannedEntry::opaque("a", blocks, Shape::vector(32)).unwrap();
        assert_eq!(told(opaque), Err(ErrorKind::Unsupported));
    }

    #[test]
    fn tensors_together() {
        let twice = vec![entry("a", DType::U8, &[]), entry("a", DType::U8, &[])];
        let plan = Plan {
            entries: twice.clone(),
            ..Plan::default()
        };
        let error = plan.check(&SMALL, &Limits::default()).unwrap_err();
        assert_eq!(
            (error.kind(), error.broken_rule()),
            (ErrorKind::Duplicate, Some("X2"))
        );
        let one = Capabilities {
            tensors: Some(1),
            ..SMALL
        };
        assert_eq!(
            checked(twice.clone(), &one).unwrap_err().0,
            ErrorKind::Unsupported
        );
        let numbered = Capabilities {
            names: Names::Numbers,
            ..SMALL
        };
        let (kind, text) = checked(twice, &numbered).unwrap_err();
        assert_eq!(kind, ErrorKind::BadName);
        assert_eq!(
            text,
            "tensor 'a': the format has no names: expected '0', its number in the file"
        );
        let large = || entry("", DType::U8, &[1 << 62]);
        let all = vec![
            large(),
            PlannedEntry {
                name: "b".into(),
                ..large()
            },
        ];
        assert_eq!(
            checked(all, &Capabilities::NUMBERS).unwrap_err().0,
            ErrorKind::TooLarge
        );
    }

    /// Checks that a tensor which shares another tensor's bytes is refused if the format cannot share bytes.
    #[test]
    fn shared_bytes() {
        let shared = || {
            let tied = PlannedEntry {
                same_as: Some(0),
                ..entry("b", DType::U8, &[9])
            };
            vec![entry("a", DType::U8, &[9]), tied]
        };
        assert_eq!(checked(shared(), &SMALL).unwrap_err().0, ErrorKind::Unsupported);
        let sharing = Capabilities {
            shares_bytes: true,
            ..SMALL
        };
        assert_eq!(checked(shared(), &sharing), Ok(()));
    }

    #[test]
    fn texts_that_have_no_place() {
        let plan = Plan {
            metadata: [("licence".to_owned(), "MIT".to_owned())].into(),
            ..Plan::default()
        };
        let told = |metadata| {
            let capabilities = Capabilities { metadata, ..SMALL };
            let checked = plan.check(&capabilities, &Limits::default());
            checked.map_err(|error| error.to_string())
        };
        assert_eq!(told(Texts::Any), Ok(()));
        assert_eq!(told(Texts::Only(&["licence"])), Ok(()));
        let none =
            "the format cannot store the metadata 'licence': expected none; use attributes of single tensors";
        assert_eq!(told(Texts::None), Err(none.to_owned()));
        let only = "the format cannot store the metadata 'licence': expected only 'model'";
        assert_eq!(told(Texts::Only(&["model"])), Err(only.to_owned()));
    }
}
