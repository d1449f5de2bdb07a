//! Values of options that have names, which help and completions show.

use std::ffi::OsStr;

use clap::{
    Arg, Command, Error,
    builder::{PossibleValue, TypedValueParser},
};

/// Parses a value of which these are the names; what else is accepted or refused, the parser alone says.
#[derive(Clone)]
pub(crate) struct Named<P> {
    pub(crate) names: fn() -> Vec<&'static str>,
    pub(crate) parse: P,
}

impl<P: TypedValueParser> TypedValueParser for Named<P> {
    type Value = P::Value;

    fn parse_ref(&self, command: &Command, argument: Option<&Arg>, value: &OsStr) -> Result<P::Value, Error> {
        self.parse.parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new((self.names)().into_iter().map(PossibleValue::new)))
    }
}
