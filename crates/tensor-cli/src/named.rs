//! Parsers of option values with a list of names for help and completions.

use std::ffi::OsStr;

use clap::{
    Arg, Command, Error,
    builder::{PossibleValue, TypedValueParser},
};

/// A value parser with a list of names for help and completions. The list does not restrict what is accepted.
#[derive(Clone)]
pub(crate) struct NamedParser<P> {
    pub(crate) names: fn() -> Vec<&'static str>,
    pub(crate) parse: P,
}

impl<P: TypedValueParser> TypedValueParser for NamedParser<P> {
    type Value = P::Value;

    fn parse_ref(&self, command: &Command, argument: Option<&Arg>, value: &OsStr) -> Result<P::Value, Error> {
        self.parse.parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new((self.names)().into_iter().map(PossibleValue::new)))
    }
}
