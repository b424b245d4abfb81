//! Reading requests strictly.
//!
//! Owns: JSON as it comes from strangers, taken apart field by field. Promises: what is not of the type or in the range
//! that it must have is told with the path of its field (`messages[2].content`); `null` is the same as a field that is
//! missing. Refuses: to guess. Fields that nobody takes are what is left, so that a response can say what was ignored.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use crate::problem::Problem;

/// An object of a request, and where it was in it.
#[derive(Debug)]
pub(crate) struct Fields {
    path: String,
    map: Map<String, Value>,
}

impl Fields {
    /// The object that a request's body is.
    pub(crate) fn parse(body: &[u8]) -> Result<Self, Problem> {
        match serde_json::from_slice(body) {
            Ok(Value::Object(map)) => Ok(Self { path: String::new(), map }),
            Ok(other) => Err(Problem::invalid(format!("the body must be a JSON object, not {}", kind(&other)))),
            Err(error) => Err(Problem::invalid(format!("the body is not valid JSON: {error}"))),
        }
    }

    /// The object at a path.
    pub(crate) fn of(path: String, value: Value) -> Result<Self, Problem> {
        match value {
            Value::Object(map) => Ok(Self { path, map }),
            other => Err(wrong(&path, "an object", &other)),
        }
    }

    /// The path of a field of this object.
    pub(crate) fn path(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// A problem with a field of this object.
    pub(crate) fn problem(&self, name: &str, text: &str) -> Problem {
        let path = self.path(name);
        Problem::field(&path, format!("`{path}` {text}"))
    }

    /// Takes a field of any type.
    pub(crate) fn value(&mut self, name: &str) -> Option<Value> {
        self.map.shift_remove(name).filter(|value| !value.is_null())
    }

    /// Takes a field that must be there.
    pub(crate) fn needed<T>(&self, name: &str, value: Option<T>) -> Result<T, Problem> {
        value.ok_or_else(|| self.problem(name, "is missing"))
    }

    /// Takes a text.
    pub(crate) fn text(&mut self, name: &str) -> Result<Option<String>, Problem> {
        match self.value(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(wrong(&self.path(name), "a string", &other)),
        }
    }

    /// Takes one of several words.
    pub(crate) fn word(&mut self, name: &str, words: &[&str]) -> Result<Option<String>, Problem> {
        let text = self.text(name)?;
        if let Some(word) = &text
            && !words.contains(&word.as_str())
        {
            let shown: String = word.chars().take(80).collect();
            let list = words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ");
            return Err(self.problem(name, &format!("must be one of {list}, not `{shown}`")));
        }
        Ok(text)
    }

    /// Takes true or false.
    pub(crate) fn flag(&mut self, name: &str) -> Result<Option<bool>, Problem> {
        match self.value(name) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(flag)),
            Some(other) => Err(wrong(&self.path(name), "true or false", &other)),
        }
    }

    /// Takes a number.
    pub(crate) fn number(&mut self, name: &str, range: RangeInclusive<f64>) -> Result<Option<f32>, Problem> {
        let Some(value) = self.value(name) else { return Ok(None) };
        let Some(number) = value.as_f64() else { return Err(wrong(&self.path(name), "a number", &value)) };
        match range.contains(&number) {
            true => Ok(Some(number as f32)),
            false => {
                let (least, most) = range.into_inner();
                Err(self.problem(name, &format!("must be between {least} and {most}, not {number}")))
            }
        }
    }

    /// Takes a whole number; one that is written with a fraction of zero counts.
    pub(crate) fn whole(&mut self, name: &str, range: RangeInclusive<u64>) -> Result<Option<u64>, Problem> {
        let Some(value) = self.value(name) else { return Ok(None) };
        let whole = |number: f64| (number.fract() == 0.0 && (0.0..9e15).contains(&number)).then_some(number as u64);
        let number = value.as_u64().or_else(|| value.as_f64().and_then(whole));
        match (number, value.is_number()) {
            (Some(number), _) if range.contains(&number) => Ok(Some(number)),
            (_, true) => {
                let (least, most) = range.into_inner();
                let most = if most == u64::MAX { String::new() } else { format!(" and at most {most}") };
                Err(self.problem(name, &format!("must be a whole number of at least {least}{most}, not {value}")))
            }
            (_, false) => Err(wrong(&self.path(name), "a whole number", &value)),
        }
    }

    /// Takes a list: the path and value of each element.
    pub(crate) fn list(&mut self, name: &str) -> Result<Option<Vec<(String, Value)>>, Problem> {
        let path = self.path(name);
        match self.value(name) {
            None => Ok(None),
            Some(Value::Array(list)) => {
                Ok(Some(list.into_iter().enumerate().map(|(at, value)| (format!("{path}[{at}]"), value)).collect()))
            }
            Some(other) => Err(wrong(&path, "a list", &other)),
        }
    }

    /// Takes an object.
    pub(crate) fn object(&mut self, name: &str) -> Result<Option<Fields>, Problem> {
        let path = self.path(name);
        self.value(name).map(|value| Fields::of(path, value)).transpose()
    }

    /// Takes an object as it is.
    pub(crate) fn map(&mut self, name: &str) -> Result<Option<Map<String, Value>>, Problem> {
        Ok(self.object(name)?.map(|fields| fields.map))
    }

    /// Takes a string, or a list of strings.
    pub(crate) fn texts(&mut self, name: &str) -> Result<Option<Vec<String>>, Problem> {
        match self.value(name) {
            None => Ok(None),
            Some(Value::String(one)) => Ok(Some(vec![one])),
            Some(Value::Array(list)) => {
                let one = |(at, value)| match value {
                    Value::String(one) => Ok(one),
                    other => Err(wrong(&format!("{}[{at}]", self.path(name)), "a string", &other)),
                };
                list.into_iter().enumerate().map(one).collect::<Result<_, _>>().map(Some)
            }
            Some(other) => Err(wrong(&self.path(name), "a string or a list of strings", &other)),
        }
    }

    /// Names of fields that nobody took and that say something.
    pub(crate) fn left(&self) -> Vec<String> {
        let said = self.map.iter().filter(|(_, value)| !value.is_null());
        said.map(|(name, _)| self.path(name)).collect()
    }
}

/// A text at a path.
pub(crate) fn text_at(path: &str, value: Value) -> Result<String, Problem> {
    match value {
        Value::String(text) => Ok(text),
        other => Err(wrong(path, "a string", &other)),
    }
}

/// The problem of a field that has another type than it must.
pub(crate) fn wrong(path: &str, expected: &str, got: &Value) -> Problem {
    Problem::field(path, format!("`{path}` must be {expected}, not {}", kind(got)))
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(text: &str) -> Fields {
        Fields::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn what_is_wrong_is_told_with_its_path() {
        let mut outer = fields(r#"{"a": {"b": [1, "x"]}, "t": 3, "n": "1", "w": 1.5, "z": 2.0, "e": null}"#);
        let mut inner = outer.object("a").unwrap().unwrap();
        let list = inner.list("b").unwrap().unwrap();
        assert_eq!(text_at(&list[1].0, list[1].1.clone()).unwrap(), "x");
        let problem = text_at(&list[0].0, list[0].1.clone()).unwrap_err();
        assert_eq!(problem.message, "`a.b[0]` must be a string, not a number");
        assert_eq!(problem.field.as_deref(), Some("a.b[0]"));
        assert_eq!(outer.text("t").unwrap_err().field.as_deref(), Some("t"));
        assert_eq!(outer.number("n", 0.0..=2.0).unwrap_err().message, "`n` must be a number, not a string");
        assert!(outer.whole("w", 1..=9).unwrap_err().message.contains("not 1.5"));
        assert_eq!(outer.whole("z", 1..=9).unwrap(), Some(2));
        assert_eq!(outer.text("e").unwrap(), None);
        assert_eq!(outer.left(), Vec::<String>::new());
    }

    #[test]
    fn numbers_that_are_none_and_deep_nesting_are_no_json() {
        for body in ["{\"t\": NaN}", "{\"t\": Infinity}", "{\"t\": 1e999}", "{\"t\": -1e999}", "", "[1", "\u{7f}", "{"]
        {
            assert!(Fields::parse(body.as_bytes()).unwrap_err().message.contains("not valid JSON"), "{body}");
        }
        let deep = format!("{{\"a\": {}{}}}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(Fields::parse(deep.as_bytes()).unwrap_err().message.contains("recursion limit"));
        assert!(Fields::parse(b"[]").unwrap_err().message.contains("not a list"));
        assert!(fields("{\"t\": -1}").whole("t", 0..=u64::MAX).is_err());
        assert!(fields("{\"t\": 99999999999999999999}").whole("t", 0..=u64::MAX).is_err());
    }
}
