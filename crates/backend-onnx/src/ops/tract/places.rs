//! Elements picked and repeated.

use tract_hir::{internal::*, ops::array};

use super::{Built, rewired::Rewired, texts::OfTexts};
use crate::{building::BuildContext, lowered::OnnxNode, ops::attributes::Attributes};

/// `Gather`.
pub(in crate::ops) fn gather(_: &BuildContext, node: &OnnxNode) -> Built {
    let axis = Attributes(node).int("axis", 0);
    Ok(expand(Rewired(
        array::Gather::new(axis),
        OfTexts::Gather { axis },
    )))
}

/// `Expand`.
pub(in crate::ops) fn expand_to(_: &BuildContext, _: &OnnxNode) -> Built {
    Ok(expand(Rewired(array::MultiBroadcastTo, OfTexts::Expand)))
}

/// `Tile`.
pub(in crate::ops) fn tile(_: &BuildContext, _: &OnnxNode) -> Built {
    Ok(expand(Rewired(array::Tile, OfTexts::Tile)))
}
