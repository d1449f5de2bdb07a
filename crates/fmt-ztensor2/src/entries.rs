//! Converts objects to dense or sparse tensors, and lists unsupported objects (O10, O11).

use std::borrow::Cow;

use fmt_cbor::Fields;
use fmt_core::{Encoding, Entry, Error, ErrorKind, Layout, StoredDType};
use tensor_core::{DType, QuotedName, Shape};

use crate::{
    container::Version,
    pairs::missing,
    parts::{DraftPart, Part},
};

/// A partially parsed object.
#[derive(Default)]
pub(crate) struct Draft<'a> {
    pub(crate) shape: Option<Shape>,
    pub(crate) layout: Option<Cow<'a, str>>,
    /// In version 1.0, the dtype of all parts.
    pub(crate) dtype: Option<Cow<'a, str>>,
    pub(crate) parts: Option<Vec<(Cow<'a, str>, DraftPart<'a>)>>,
    pub(crate) attributes: Option<Fields>,
}

/// The data needed to read an object, in addition to its entry.
#[derive(Debug)]
pub(crate) enum Content {
    Dense {
        /// Whether every byte must be 0 or 1.
        is_zero_or_one: bool,
    },
    Sparse(Box<Sparse>),
    /// The object cannot be read, and is only listed.
    Listed,
}

/// The parts of a sparse tensor.
#[derive(Debug)]
pub(crate) struct Sparse {
    pub(crate) values: Part,
    /// Coordinates, axis by axis; for compressed rows, the column of each entry.
    pub(crate) indices: Part,
    /// For compressed rows, the index of the first entry of each row, followed by the number of entries.
    pub(crate) indptr: Option<Part>,
    pub(crate) nnz: u64,
    /// Bytes per index: 4 or 8.
    pub(crate) width: u64,
}

/// Returns the entry of an object and the data needed to read it.
pub(crate) fn made_of(
    name: &str,
    draft: &Draft<'_>,
    mut parts: Vec<Part>,
    version: Version,
) -> Result<(Entry, Content), Error> {
    let (layout_key, parts_key) = match version {
        Version::V1 => ("format", "components"),
        Version::V2 => ("layout", "parts"),
    };
    let shape = draft.shape.clone().ok_or_else(|| missing("shape", "an object"))?;
    let layout = draft
        .layout
        .as_deref()
        .ok_or_else(|| missing(layout_key, "an object"))?;
    let named = draft
        .parts
        .as_deref()
        .ok_or_else(|| missing(parts_key, "an object"))?;
    if named.is_empty() && version == Version::V2 {
        let error = Error::new(ErrorKind::Malformed, "the number of parts").rule("O4");
        return Err(error.expected("at least 1").found(0));
    }
    let mut entry = Entry::new(name.to_owned(), StoredDType::Unknown(String::new()), shape, 0..0);
    let mut part = |role: &str| {
        let place = named.iter().position(|(found, _)| found == role);
        place.map(|place| std::mem::replace(&mut parts[place], Part::taken()))
    };
    let kind = Kind::of(layout, version);
    let roles: &[&str] = match kind {
        Kind::Dense => &["data"],
        Kind::Coo => &["values", "coords"],
        Kind::Csr => &["values", "indices", "indptr"],
        Kind::Other => return Ok((listed(entry, layout, part), Content::Listed)),
    };
    check_roles(roles, named)?;
    let content = match (kind, part(roles[0])) {
        (Kind::Dense, Some(data)) => dense(&mut entry, &data)?,
        (_, Some(values)) => {
            let indices = part(roles[1]).unwrap_or_else(Part::taken);
            let indptr = roles.get(2).and_then(|role| part(role));
            sparse(&mut entry, values, indices, indptr, version)?
        }
        // Unreachable: all parts of the layout are present, as checked above.
        (_, None) => Content::Listed,
    };
    Ok((entry, content))
}

enum Kind {
    Dense,
    Coo,
    Csr,
    Other,
}

impl Kind {
    fn of(layout: &str, version: Version) -> Self {
        match (layout, version) {
            ("dense", _) => Self::Dense,
            ("sparse_coo", Version::V1) | ("zt.sparse_coo/1", Version::V2) => Self::Coo,
            ("sparse_csr", Version::V1) | ("zt.sparse_csr/1", Version::V2) => Self::Csr,
            _ => Self::Other,
        }
    }
}

/// Checks that an object's parts are exactly those of its layout, in any order.
fn check_roles(roles: &[&str], named: &[(Cow<'_, str>, DraftPart<'_>)]) -> Result<(), Error> {
    if let Some(missing) = roles
        .iter()
        .find(|role| !named.iter().any(|(name, _)| name == *role))
    {
        let error = Error::new(ErrorKind::Malformed, format!("the part '{missing}' is missing"));
        return Err(error.rule("O11").expected(roles.join(", ")));
    }
    if let Some((extra, _)) = named.iter().find(|(name, _)| !roles.contains(&&**name)) {
        let error = Error::new(ErrorKind::Malformed, "a part that the layout does not have");
        return Err(error
            .rule("O11")
            .expected(roles.join(", "))
            .found(QuotedName(extra)));
    }
    Ok(())
}

/// Returns the entry of an object with a layout that is not supported. `part` returns a part by its role.
fn listed(mut entry: Entry, layout: &str, part: impl FnMut(&str) -> Option<Part>) -> Entry {
    // Lists the dtype of the part that most likely holds the elements.
    let shown = ["data", "values", "packed_weight"].into_iter().find_map(part);
    if let Some(shown) = &shown {
        show(&mut entry, shown);
    }
    entry.layout = Layout::Unknown(layout.to_owned());
    entry.unsupported = Some(format!("the layout {}", QuotedName(layout)));
    entry
}

/// Fills the dtype, encoding, range and checksum of an entry from one of the object's parts.
fn show(entry: &mut Entry, part: &Part) {
    entry.dtype = match &part.types {
        Ok(types) => types.dtype.clone(),
        Err(unknown) => StoredDType::Unknown(unknown.name.clone()),
    };
    entry.encoding = part.encoding.clone();
    if part.shard.is_none() {
        entry.range = part.range.clone();
    }
    entry.checksum.clone_from(&part.digest);
}

fn dense(entry: &mut Entry, data: &Part) -> Result<Content, Error> {
    show(entry, data);
    let count = entry.shape.element_count();
    let mut is_zero_or_one = false;
    if let Ok(types) = &data.types {
        let len = types.byte_len(count).ok_or_else(|| overflow(entry))?;
        data.check_len(Some(len), &format!("{}{}", entry.dtype, entry.shape))?;
        is_zero_or_one = types.is_zero_or_one;
        if types.has_padding(count) {
            entry.dtype = StoredDType::Unknown(entry.dtype.to_string());
            entry.unsupported = Some("an odd number of elements of half a byte".to_owned());
        } else if let StoredDType::Opaque(dtype) = &types.dtype {
            entry.unsupported = Some(dtype.reason());
        }
    }
    if let Some(reason) = data.unsupported() {
        // The dtype becomes unknown: with an opaque dtype, tools would copy the bytes.
        entry.dtype = StoredDType::Unknown(entry.dtype.to_string());
        entry.unsupported = Some(reason);
        return Ok(Content::Listed);
    }
    if matches!(entry.dtype, StoredDType::Unknown(_)) {
        return Ok(Content::Listed);
    }
    Ok(Content::Dense { is_zero_or_one })
}

fn overflow(entry: &Entry) -> Error {
    let what = "the bytes of all elements do not fit 64 bits";
    Error::new(ErrorKind::Overflow, what)
        .rule("O5")
        .found(format_args!("{}{}", entry.dtype, entry.shape))
}

/// Parses coordinates or compressed rows. The length of the indices determines the number of entries.
fn sparse(
    entry: &mut Entry,
    values: Part,
    indices: Part,
    indptr: Option<Part>,
    version: Version,
) -> Result<Content, Error> {
    let rank = entry.shape.rank() as u64;
    let is_csr = indptr.is_some();
    check_rank(rank, is_csr)?;
    show(entry, &values);
    let reason = [Some(&values), Some(&indices), indptr.as_ref()]
        .into_iter()
        .flatten()
        .find_map(Part::unsupported);
    entry.layout = Layout::Unknown("sparse".to_owned());
    if let Some(reason) = reason {
        entry.unsupported = Some(reason);
        return Ok(Content::Listed);
    }
    let width = common_index_width(&indices, indptr.as_ref(), version)?;
    // Files of versions 1.0 and 1.1 lack the decoded size of compressed parts.
    let are_rows_sized = indptr.as_ref().is_none_or(|indptr| indptr.decoded.is_some());
    let (Some(index_len), Some(_), true) = (indices.decoded, values.decoded, are_rows_sized) else {
        entry.unsupported = Some("compressed coordinates without their number".to_owned());
        return Ok(Content::Listed);
    };
    let per_entry = if is_csr { width } else { width * rank };
    if !index_len.is_multiple_of(per_entry) {
        let error = Error::new(ErrorKind::SizeMismatch, "the size of the indices").rule("O11");
        return Err(error
            .expected(format_args!("a multiple of {per_entry}"))
            .found(index_len));
    }
    let nnz = index_len / per_entry;
    let sparse = Sparse {
        values,
        indices,
        indptr,
        nnz,
        width,
    };
    sparse
        .check_lens(&entry.shape)
        .map_err(|error| error.rule("O11"))?;
    entry.layout = Layout::Coo { nnz };
    if entry.dtype.known().is_none() {
        entry.unsupported = Some(format!("sparse values of the dtype {}", entry.dtype));
        return Ok(Content::Listed);
    }
    if entry.spec().is_none() {
        return Err(overflow(entry));
    }
    Ok(Content::Sparse(Box::new(sparse)))
}

impl Sparse {
    /// Checks the lengths of the values and row pointers against the tensor's shape.
    fn check_lens(&self, shape: &Shape) -> Result<(), Error> {
        let types = self.values.types.as_ref().ok();
        let len = types.and_then(|types| types.byte_len(self.nnz));
        self.values.check_len(len, &format!("{} values", self.nnz))?;
        let Some(indptr) = &self.indptr else {
            return Ok(());
        };
        let rows = shape.dims().first().copied().unwrap_or_default();
        let len = rows.checked_add(1).and_then(|rows| rows.checked_mul(self.width));
        indptr.check_len(len, &format!("{rows} rows"))
    }
}

/// Checks the rank of coordinates or compressed rows.
fn check_rank(rank: u64, is_csr: bool) -> Result<(), Error> {
    if rank == 0 || (is_csr && rank != 2) {
        let error = Error::new(ErrorKind::Malformed, "the rank of a sparse tensor").rule("O11");
        let expected = if is_csr { "2" } else { "at least 1" };
        return Err(error.expected(expected).found(rank));
    }
    Ok(())
}

/// Returns the bytes per index, and checks that `indices` and `indptr` agree.
fn common_index_width(indices: &Part, indptr: Option<&Part>, version: Version) -> Result<u64, Error> {
    let width = index_width(indices, version)?;
    if let Some(indptr) = indptr
        && index_width(indptr, version)? != width
    {
        let what = "the dtypes of indices and indptr differ";
        return Err(Error::new(ErrorKind::Malformed, what).rule("O11"));
    }
    Ok(width)
}

fn index_width(part: &Part, version: Version) -> Result<u64, Error> {
    let dtype = part.types.as_ref().ok().and_then(|types| types.dtype.known());
    match (dtype, version) {
        (Some(DType::U64), _) => Ok(8),
        (Some(DType::U32), Version::V2) => Ok(4),
        _ => {
            let error = Error::new(ErrorKind::Malformed, "the dtype of indices").rule("O11");
            Err(error.expected(match version {
                Version::V1 => "u64",
                Version::V2 => "u32 or u64",
            }))
        }
    }
}

impl Part {
    /// Creates a placeholder for a part that has been moved elsewhere.
    fn taken() -> Self {
        Self {
            range: 0..0,
            encoding: Encoding::Raw,
            decoded: None,
            digest: None,
            shard: None,
            types: Err(crate::parts::Unknown {
                name: String::new(),
                reason: String::new(),
            }),
        }
    }
}
