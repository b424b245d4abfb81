//! The `tojson` filter of chat templates: JSON as Python's `json.dumps` writes it.
//!
//! Owns: the text form. Models saw tool definitions in exactly this form (`", "` and `": "` between things, keys in the
//! client's order, no HTML escapes, letters as they are), so a different one is a different prompt.
//! Promises: bounded work and depth, whatever a template has built.
//! Refuses: values that JSON cannot hold, such as undefined ones.

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

/// Deeper values are refused: they can only be a template's mistake.
const MAX_DEPTH: usize = 128;

/// The filter. Takes the keyword arguments of transformers' own: `ensure_ascii`, `indent`, `separators`, `sort_keys`.
#[allow(clippy::needless_pass_by_value)] // the form that minijinja calls filters in
pub(crate) fn tojson(state: &State, value: &Value, args: Kwargs) -> Result<String, Error> {
    let indent = args.get::<Option<usize>>("indent")?;
    let (item, key) = match args.get::<Option<Vec<String>>>("separators")?.as_deref() {
        None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
        None => (", ".to_owned(), ": ".to_owned()),
        Some([item, key]) => (item.clone(), key.clone()),
        Some(_) => return Err(refused("`separators` must be two strings")),
    };
    let mut writer = Writer {
        state,
        indent,
        item,
        key,
        ensure_ascii: args.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sort_keys: args.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        out: String::new(),
    };
    args.assert_all_used()?;
    writer.value(value, 0)?;
    Ok(writer.out)
}

fn refused(reason: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("tojson: {}", reason.into()))
}

struct Writer<'a, 'template, 'env> {
    state: &'a State<'template, 'env>,
    /// Spaces per level; none writes everything on one line.
    indent: Option<usize>,
    item: String,
    key: String,
    ensure_ascii: bool,
    sort_keys: bool,
    out: String,
}

impl Writer<'_, '_, '_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(refused(format!("the value is nested more than {MAX_DEPTH} levels deep")));
        }
        self.pay(value.as_str().map_or(0, str::len))?;
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number if value.is_integer() => self.out.push_str(&value.to_string()),
            ValueKind::Number => self.out.push_str(&float(f64::try_from(value.clone())?)),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items = value.try_iter()?.map(|item| (None, item)).collect();
                self.items('[', items, ']', depth)?;
            }
            ValueKind::Map => {
                let mut items = Vec::new();
                for key in value.try_iter()? {
                    items.push((Some(key_text(&key)?), value.get_item(&key)?));
                }
                if self.sort_keys {
                    items.sort_by(|a, b| a.0.cmp(&b.0));
                }
                self.items('{', items, '}', depth)?;
            }
            kind => return Err(refused(format!("a value that is {kind} cannot be written as JSON"))),
        }
        Ok(())
    }

    fn items(
        &mut self,
        open: char,
        items: Vec<(Option<String>, Value)>,
        close: char,
        depth: usize,
    ) -> Result<(), Error> {
        self.out.push(open);
        let is_empty = items.is_empty();
        for (index, (key, item)) in items.into_iter().enumerate() {
            let indent_bytes = self.indent.unwrap_or(0).saturating_mul(depth + 1);
            self.pay(
                indent_bytes.saturating_add(self.item.len() + self.key.len() + key.as_ref().map_or(0, String::len)),
            )?;
            if index > 0 {
                self.out.push_str(&self.item);
            }
            self.new_line(depth + 1);
            if let Some(key) = key {
                self.string(&key);
                self.out.push_str(&self.key);
            }
            self.value(&item, depth + 1)?;
        }
        if !is_empty {
            self.new_line(depth);
        }
        self.out.push(close);
        Ok(())
    }

    /// Pays for text before it is written: a value that shares its parts can be far longer than it is large.
    fn pay(&self, len_bytes: usize) -> Result<(), Error> {
        self.state.consume_fuel(1 + len_bytes as u64 / 64)
    }

    fn new_line(&mut self, depth: usize) {
        if let Some(indent) = self.indent {
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(' ', indent * depth));
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if c < ' ' || (self.ensure_ascii && c > '~') => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        self.out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}

/// Keys as Python writes them: strings as they are, numbers, booleans and none as their JSON text.
fn key_text(key: &Value) -> Result<String, Error> {
    match key.kind() {
        ValueKind::String => Ok(key.as_str().unwrap_or_default().to_owned()),
        ValueKind::None => Ok("null".to_owned()),
        ValueKind::Bool => Ok(if key.is_true() { "true" } else { "false" }.to_owned()),
        ValueKind::Number if key.is_integer() => Ok(key.to_string()),
        ValueKind::Number => Ok(float(f64::try_from(key.clone())?)),
        kind => Err(refused(format!("a key that is {kind} cannot be written as JSON"))),
    }
}

/// Python's text of a float: the shortest digits that read back as the same number.
fn float(x: f64) -> String {
    if x.is_nan() {
        return "NaN".to_owned();
    }
    if x.is_infinite() {
        return if x > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    // Rust chooses digits and notation alike, but writes exponents as `e16` and `e-5` for Python's `e+16` and `e-05`.
    let text = format!("{x:?}");
    match text.split_once('e') {
        None => text,
        Some((digits, exponent)) => {
            let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |exponent| ('-', exponent));
            format!("{digits}e{sign}{exponent:0>2}")
        }
    }
}
