//! Reads the daemon's description of a virtual GPU.
//!
//! A small reader of JSON, so that a library loaded into every tenant stays small. Foreign bytes:
//! nothing panics, depth is bounded, and what is malformed is no value at all.

/// A JSON value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    /// `null`, `true` or `false`, which nothing here needs to tell apart.
    Other,
    /// A number.
    Number(f64),
    /// Text.
    Text(String),
    /// A list.
    List(Vec<Value>),
    /// Named values.
    Object(Vec<(String, Value)>),
}

/// Nesting beyond this is refused.
const DEEPEST: usize = 32;

impl Value {
    /// Reads one value that fills the whole text.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut reader = Reader {
            bytes: text.as_bytes(),
            at: 0,
        };
        let value = reader.value(0)?;
        reader.space();
        (reader.at == reader.bytes.len()).then_some(value)
    }

    /// The value of a name in an object.
    pub(crate) fn get(&self, name: &str) -> Option<&Value> {
        match self {
            Self::Object(entries) => entries.iter().find(|(n, _)| n == name).map(|(_, v)| v),
            _ => None,
        }
    }

    /// A number that is not negative, rounded down.
    pub(crate) fn whole(&self) -> Option<u64> {
        match self {
            Self::Number(number) if *number >= 0.0 => Some(*number as u64),
            _ => None,
        }
    }

    /// A number.
    pub(crate) fn number(&self) -> Option<f64> {
        match self {
            Self::Number(number) => Some(*number),
            _ => None,
        }
    }

    /// Text.
    pub(crate) fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The entries of a list.
    pub(crate) fn list(&self) -> &[Value] {
        match self {
            Self::List(entries) => entries,
            _ => &[],
        }
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn space(&mut self) {
        while matches!(self.bytes.get(self.at), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn next(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    fn expect(&mut self, wanted: u8) -> Option<()> {
        self.space();
        (self.next()? == wanted).then_some(())
    }

    fn peek(&mut self) -> Option<u8> {
        self.space();
        self.bytes.get(self.at).copied()
    }

    fn value(&mut self, depth: usize) -> Option<Value> {
        if depth > DEEPEST {
            return None;
        }
        match self.peek()? {
            b'{' => self.object(depth),
            b'[' => self.array(depth),
            b'"' => self.text().map(Value::Text),
            b't' => self.word("true"),
            b'f' => self.word("false"),
            b'n' => self.word("null"),
            _ => self.number(),
        }
    }

    fn word(&mut self, word: &str) -> Option<Value> {
        let end = self.at + word.len();
        let found = self.bytes.get(self.at..end)? == word.as_bytes();
        self.at = end;
        found.then_some(Value::Other)
    }

    fn number(&mut self) -> Option<Value> {
        let start = self.at;
        while matches!(
            self.bytes.get(self.at),
            Some(b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E')
        ) {
            self.at += 1;
        }
        let text = std::str::from_utf8(&self.bytes[start..self.at]).ok()?;
        text.parse().ok().map(Value::Number)
    }

    fn object(&mut self, depth: usize) -> Option<Value> {
        self.expect(b'{')?;
        let mut entries = Vec::new();
        if self.peek()? == b'}' {
            self.at += 1;
            return Some(Value::Object(entries));
        }
        loop {
            self.space();
            let name = self.text()?;
            self.expect(b':')?;
            entries.push((name, self.value(depth + 1)?));
            self.space();
            match self.next()? {
                b',' => {}
                b'}' => return Some(Value::Object(entries)),
                _ => return None,
            }
        }
    }

    fn array(&mut self, depth: usize) -> Option<Value> {
        self.expect(b'[')?;
        let mut entries = Vec::new();
        if self.peek()? == b']' {
            self.at += 1;
            return Some(Value::List(entries));
        }
        loop {
            entries.push(self.value(depth + 1)?);
            self.space();
            match self.next()? {
                b',' => {}
                b']' => return Some(Value::List(entries)),
                _ => return None,
            }
        }
    }

    fn text(&mut self) -> Option<String> {
        self.expect(b'"')?;
        let mut bytes = Vec::new();
        loop {
            match self.next()? {
                b'"' => return String::from_utf8(bytes).ok(),
                b'\\' => {
                    let character = self.escape()?;
                    bytes.extend(character.encode_utf8(&mut [0; 4]).bytes());
                }
                byte => bytes.push(byte),
            }
        }
    }

    fn escape(&mut self) -> Option<char> {
        Some(match self.next()? {
            b'n' => '\n',
            b't' => '\t',
            b'r' => '\r',
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'u' => {
                let digits = self.bytes.get(self.at..self.at + 4)?;
                self.at += 4;
                let code = u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
                char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)
            }
            byte @ (b'"' | b'\\' | b'/') => byte.into(),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_is_read() {
        let text = r#" {"name":"a\"\u00e9", "memory_limit_bytes": 8589934592,
            "share":12.5, "cap":false, "note":null, "processes":[{"pid":7},{"pid":8}], "x":{} , "y":[]} "#;
        let value = Value::parse(text).expect("it is JSON");
        assert_eq!(value.get("name").and_then(Value::text), Some("a\"é"));
        let limit = value.get("memory_limit_bytes").and_then(Value::whole);
        assert_eq!(limit, Some(8 << 30));
        assert_eq!(value.get("share").and_then(Value::number), Some(12.5));
        let processes = value.get("processes").map_or(&[][..], Value::list);
        assert_eq!(processes[1].get("pid").and_then(Value::whole), Some(8));
    }

    #[test]
    fn what_is_malformed_is_no_value() {
        let whole = r#"{"a":[1,2,{"b":"c\u0041"}],"d":-1e3}"#;
        assert!(Value::parse(whole).is_some());
        for cut in 0..whole.len() {
            assert_eq!(Value::parse(&whole[..cut]), None, "{}", &whole[..cut]);
        }
        for text in ["{]", "[1 2]", "{\"a\" 1}", "tru", "\"\\x\"", "1 2", "--"] {
            assert_eq!(Value::parse(text), None, "{text}");
        }
        assert_eq!(Value::parse(&"[".repeat(100_000)), None);
    }
}
