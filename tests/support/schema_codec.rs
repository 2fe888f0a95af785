//! An independent codec for Kafka messages: it interprets the schema texts at run time and shares no code with the generated one.
//!
//! Tests use it to make valid bytes for any (message, version), and to decode any answer to its last byte. It is strict where a broker
//! is lenient: an unknown or unsorted tag, a tagged field of another size than announced, or null where there is none is an error.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::fs;
use std::ops::Index;
use std::path::Path;

use corelane::model::Rng;

/// A value of any message. A struct need not have all fields when it is encoded: the missing ones get Kafka's default.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Uuid([u8; 16]),
    Text(String),
    Bytes(Vec<u8>),
    Array(Vec<Value>),
    Struct(BTreeMap<String, Value>),
}

pub struct Schemas {
    pub messages: Vec<Message>,
}

pub struct Message {
    /// `request response header data record key value`
    pub kind: String,
    pub name: String,
    pub api: Option<i16>,
    pub versions: (i16, i16),
    first_flexible: i16,
    fields: Vec<Field>,
    structs: BTreeMap<String, Vec<Field>>,
}

#[derive(Clone, Debug)]
struct Field {
    name: String,
    kind: Kind,
    array: bool,
    nullable: Option<(i16, i16)>,
    versions: (i16, i16),
    tag: Option<u32>,
    inflexible: bool,
    default: String,
    /// The fields of an inline struct; empty for a common one.
    fields: Vec<Field>,
}

#[derive(Clone, Debug, PartialEq)]
enum Kind {
    Bool,
    Int { bytes: usize, signed: bool },
    Float,
    Uuid,
    Text,
    Bytes,
    Struct(String),
}

// ---- values

impl Value {
    /// A struct of the given fields.
    pub fn of<const N: usize>(fields: [(&str, Value); N]) -> Value {
        Value::Struct(fields.map(|(name, value)| (name.to_string(), value)).into())
    }

    pub fn int(&self) -> i64 {
        match self {
            Value::Int(value) => *value,
            other => panic!("not an int: {other:?}"),
        }
    }

    pub fn text(&self) -> &str {
        match self {
            Value::Text(text) => text,
            other => panic!("not a string: {other:?}"),
        }
    }

    pub fn bytes(&self) -> &[u8] {
        match self {
            Value::Bytes(bytes) => bytes,
            other => panic!("not bytes: {other:?}"),
        }
    }

    pub fn uuid(&self) -> [u8; 16] {
        match self {
            Value::Uuid(bytes) => *bytes,
            other => panic!("not a uuid: {other:?}"),
        }
    }

    pub fn list(&self) -> &[Value] {
        match self {
            Value::Array(list) => list,
            other => panic!("not an array: {other:?}"),
        }
    }
}

impl Index<&str> for Value {
    type Output = Value;

    fn index(&self, name: &str) -> &Value {
        match self {
            Value::Struct(fields) => fields
                .get(name)
                .unwrap_or_else(|| panic!("no {name} in {fields:?}")),
            other => panic!("not a struct: {other:?}"),
        }
    }
}

impl Index<usize> for Value {
    type Output = Value;

    fn index(&self, index: usize) -> &Value {
        &self.list()[index]
    }
}

impl From<i64> for Value {
    fn from(value: i64) -> Value {
        Value::Int(value)
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Value {
        Value::Bool(value)
    }
}

impl From<&str> for Value {
    fn from(value: &str) -> Value {
        Value::Text(value.to_string())
    }
}

impl From<&[u8]> for Value {
    fn from(value: &[u8]) -> Value {
        Value::Bytes(value.to_vec())
    }
}

impl From<[u8; 16]> for Value {
    fn from(value: [u8; 16]) -> Value {
        Value::Uuid(value)
    }
}

impl From<Vec<Value>> for Value {
    fn from(value: Vec<Value>) -> Value {
        Value::Array(value)
    }
}

// ---- schemas

impl Schemas {
    pub fn load() -> Schemas {
        // The fuzz crate, two folders down, uses this file too.
        let above = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
        let mut dirs = above.map(|dir| dir.join("src/wire/schema"));
        let dir = dirs.find(|dir| dir.is_dir()).expect("the schema folder");
        let mut messages = Vec::new();
        for entry in fs::read_dir(dir).expect("the schema folder") {
            let text = fs::read_to_string(entry.unwrap().path()).unwrap();
            let lines: Vec<&str> = text
                .lines()
                .filter(|l| !l.is_empty() && !l.starts_with('#'))
                .collect();
            let mut at = 0;
            while at < lines.len() {
                messages.push(parse_message(&lines, &mut at));
            }
        }
        messages.sort_by(|a, b| a.name.cmp(&b.name));
        Schemas { messages }
    }

    pub fn message(&self, name: &str) -> &Message {
        self.messages
            .iter()
            .find(|m| m.name == name)
            .unwrap_or_else(|| panic!("no message {name}"))
    }

    pub fn request(&self, api: i16) -> &Message {
        self.messages
            .iter()
            .find(|m| m.kind == "request" && m.api == Some(api))
            .expect("a known key")
    }

    pub fn response(&self, api: i16) -> &Message {
        self.messages
            .iter()
            .find(|m| m.kind == "response" && m.api == Some(api))
            .expect("a known key")
    }

    /// A whole request frame, with its size.
    pub fn request_frame(
        &self,
        api: i16,
        version: i16,
        correlation_id: i32,
        body: &[u8],
    ) -> Vec<u8> {
        let header = Value::of([
            ("RequestApiKey", Value::Int(api.into())),
            ("RequestApiVersion", Value::Int(version.into())),
            ("CorrelationId", Value::Int(correlation_id.into())),
            ("ClientId", "schema-codec".into()),
        ]);
        let header_version = if version >= self.request(api).first_flexible {
            2
        } else {
            1
        };
        let mut bytes = self
            .message("RequestHeader")
            .encode(header_version, &header);
        bytes.extend_from_slice(body);
        let mut frame = (bytes.len() as i32).to_be_bytes().to_vec();
        frame.append(&mut bytes);
        frame
    }

    /// Decodes an answer (without its size) to its last byte: correlation id and body.
    pub fn read_response(
        &self,
        api: i16,
        version: i16,
        bytes: &[u8],
    ) -> Result<(i32, Value), String> {
        let message = self.response(api);
        let header_version = i16::from(version >= message.first_flexible && api != 18);
        let (header, header_bytes) = self
            .message("ResponseHeader")
            .decode(header_version, bytes)?;
        let (body, body_bytes) = message.decode(version, &bytes[header_bytes..])?;
        if header_bytes + body_bytes != bytes.len() {
            return Err(format!(
                "{} bytes behind the body",
                bytes.len() - header_bytes - body_bytes
            ));
        }
        Ok((header["CorrelationId"].int() as i32, body))
    }
}

fn depth(line: &str) -> usize {
    (line.len() - line.trim_start().len()) / 2
}

fn parse_message(lines: &[&str], at: &mut usize) -> Message {
    let words: Vec<&str> = lines[*at].split_whitespace().collect();
    let after = |key| words.iter().position(|w| *w == key).map(|i| words[i + 1]);
    let versions = parse_range(after("versions").expect("versions"));
    let mut message = Message {
        kind: words[0].to_string(),
        name: words[1].to_string(),
        api: after("api").map(|api| api.parse().unwrap()),
        versions,
        first_flexible: after("flexible").map_or(i16::MAX, |range| parse_range(range).0),
        fields: Vec::new(),
        structs: BTreeMap::new(),
    };
    *at += 1;
    message.fields = parse_fields(lines, at, 1);
    while *at < lines.len() && lines[*at].trim_start().starts_with("struct ") {
        let name = lines[*at].trim_start()["struct ".len()..].to_string();
        *at += 1;
        let fields = parse_fields(lines, at, 2);
        message.structs.insert(name, fields);
    }
    message
}

fn parse_fields(lines: &[&str], at: &mut usize, level: usize) -> Vec<Field> {
    let mut fields = Vec::new();
    while *at < lines.len()
        && depth(lines[*at]) == level
        && !lines[*at].trim_start().starts_with("struct ")
    {
        let mut field = parse_field(lines[*at].trim_start());
        *at += 1;
        field.fields = parse_fields(lines, at, level + 1);
        fields.push(field);
    }
    fields
}

fn parse_range(text: &str) -> (i16, i16) {
    let number = |text: &str| {
        text.parse::<i16>()
            .unwrap_or_else(|_| panic!("not a version: {text}"))
    };
    match (text.strip_suffix('+'), text.split_once('-')) {
        (Some(from), _) => (number(from), i16::MAX),
        (None, Some((from, to))) => (number(from), number(to)),
        (None, None) => (number(text), number(text)),
    }
}

fn parse_field(line: &str) -> Field {
    let mut words = line.split_whitespace();
    let name = words.next().unwrap().to_string();
    let full = words.next().unwrap();
    let (array, full) = full
        .strip_prefix("[]")
        .map_or((false, full), |rest| (true, rest));
    let (kind, nullable) = match full.find('?') {
        None => (full, None),
        Some(i) if i + 1 == full.len() => (&full[..i], Some((0, i16::MAX))),
        Some(i) => (&full[..i], Some(parse_range(&full[i + 1..]))),
    };
    let int = |bytes| Kind::Int {
        bytes,
        signed: !kind.starts_with('u'),
    };
    let kind = match kind {
        "bool" => Kind::Bool,
        "int8" => int(1),
        "int16" | "uint16" => int(2),
        "int32" | "uint32" => int(4),
        "int64" => int(8),
        "float64" => Kind::Float,
        "uuid" => Kind::Uuid,
        "string" => Kind::Text,
        "bytes" | "records" => Kind::Bytes,
        name => Kind::Struct(name.to_string()),
    };
    let mut field = Field {
        name,
        kind,
        array,
        nullable,
        versions: (0, i16::MAX),
        tag: None,
        inflexible: false,
        default: String::new(),
        fields: Vec::new(),
    };
    // Records have no empty default in Kafka: a nullable one that is not set is null.
    if full.starts_with("records") && nullable.is_some() {
        field.default = "null".into();
    }
    for word in words {
        match word.split_at(1) {
            ("#", tag) => field.tag = Some(tag.parse().unwrap()),
            ("=", default) => field.default = default.to_string(),
            _ if word == "inflexible" => field.inflexible = true,
            _ => field.versions = parse_range(word),
        }
    }
    field
}

impl Field {
    fn is_in(&self, version: i16) -> bool {
        (self.versions.0..=self.versions.1).contains(&version)
    }

    fn nulls(&self, version: i16) -> bool {
        self.nullable
            .is_some_and(|(from, to)| (from..=to).contains(&version))
    }
}

// ---- encoding and decoding

impl Message {
    pub fn is_flexible(&self, version: i16) -> bool {
        version >= self.first_flexible
    }

    pub fn encode(&self, version: i16, value: &Value) -> Vec<u8> {
        assert!(
            (self.versions.0..=self.versions.1).contains(&version),
            "{} v{version}",
            self.name
        );
        let mut encoder = Encoder {
            message: self,
            version,
            out: Vec::new(),
            unknown_tags: None,
        };
        encoder.fields(&self.fields, value);
        encoder.out
    }

    /// As [`Message::encode`], with tagged fields that nobody knows in every struct of a flexible version.
    pub fn encode_with_unknown_tags(&self, version: i16, value: &Value, rng: &mut Rng) -> Vec<u8> {
        let mut encoder = Encoder {
            message: self,
            version,
            out: Vec::new(),
            unknown_tags: Some(rng),
        };
        encoder.fields(&self.fields, value);
        encoder.out
    }

    /// The value, and how many bytes it took.
    pub fn decode(&self, version: i16, bytes: &[u8]) -> Result<(Value, usize), String> {
        let mut decoder = Decoder {
            message: self,
            version,
            bytes,
            at: 0,
        };
        let value = decoder.fields(&self.fields).map_err(|why| {
            format!(
                "{} v{version} at byte {} of {}: {why}",
                self.name,
                decoder.at,
                bytes.len()
            )
        })?;
        Ok((value, decoder.at))
    }

    /// Every field of the version at its default; arrays that may not be null are empty.
    pub fn minimal(&self, version: i16) -> Value {
        self.defaults(&self.fields, version)
    }

    fn struct_fields<'s>(&'s self, field: &'s Field, name: &str) -> &'s [Field] {
        if field.fields.is_empty() {
            self.structs.get(name).map_or(&[], |f| f.as_slice())
        } else {
            &field.fields
        }
    }

    fn defaults(&self, fields: &[Field], version: i16) -> Value {
        let fields = fields.iter().filter(|field| field.is_in(version));
        Value::Struct(
            fields
                .map(|field| (field.name.clone(), self.default(field, version)))
                .collect(),
        )
    }

    fn default(&self, field: &Field, version: i16) -> Value {
        if field.default == "null" {
            // Where the version has no null, an encoder writes the empty value.
            if field.nulls(version) {
                return Value::Null;
            }
        }
        if field.array {
            return Value::Array(Vec::new());
        }
        match &field.kind {
            Kind::Bool => Value::Bool(field.default == "true"),
            Kind::Int { .. } => Value::Int(field.default.parse().unwrap_or(0)),
            Kind::Float => Value::Float(field.default.parse().unwrap_or(0.0)),
            Kind::Uuid => Value::Uuid([0; 16]),
            Kind::Text => Value::Text(if field.default == "null" {
                String::new()
            } else {
                field.default.clone()
            }),
            Kind::Bytes => Value::Bytes(Vec::new()),
            Kind::Struct(name) => self.defaults(self.struct_fields(field, name), version),
        }
    }
}

struct Encoder<'a> {
    message: &'a Message,
    version: i16,
    out: Vec<u8>,
    unknown_tags: Option<&'a mut Rng>,
}

impl Encoder<'_> {
    fn fields(&mut self, fields: &[Field], value: &Value) {
        let Value::Struct(given) = value else {
            panic!("not a struct: {value:?}")
        };
        for name in given.keys() {
            assert!(
                fields.iter().any(|f| f.name == *name),
                "{} has no field {name} here",
                self.message.name
            );
        }
        let mut tagged = BTreeMap::new();
        let version = self.version;
        for field in fields.iter().filter(|field| field.is_in(version)) {
            let default = self.message.default(field, self.version);
            let value = given.get(&field.name).unwrap_or(&default);
            match field.tag {
                None => self.field(field, value),
                Some(tag) if *value != default => {
                    let before = std::mem::take(&mut self.out);
                    self.field(field, value);
                    tagged.insert(tag, std::mem::replace(&mut self.out, before));
                }
                Some(_) => {}
            }
        }
        if !self.message.is_flexible(self.version) {
            return;
        }
        if let Some(rng) = &mut self.unknown_tags {
            let payload = (0..rng.below(200)).map(|i| i as u8).collect();
            tagged.insert(rng.range(100, 1 << 31) as u32, payload);
        }
        self.uvarint(tagged.len() as u32);
        for (tag, payload) in tagged {
            self.uvarint(tag);
            self.uvarint(payload.len() as u32);
            self.out.extend(payload);
        }
    }

    fn field(&mut self, field: &Field, value: &Value) {
        let null = *value == Value::Null;
        assert!(
            !null || field.nulls(self.version),
            "{} is not nullable in v{}",
            field.name,
            self.version
        );
        if !field.array {
            return self.single(field, value);
        }
        if null {
            return self.length(None, false);
        }
        self.length(Some(value.list().len()), false);
        for element in value.list() {
            self.single(
                &Field {
                    nullable: None,
                    ..field.clone()
                },
                element,
            );
        }
    }

    fn single(&mut self, field: &Field, value: &Value) {
        match (&field.kind, value) {
            (Kind::Bool, Value::Bool(value)) => self.out.push(u8::from(*value)),
            (Kind::Int { bytes, signed }, Value::Int(value)) => {
                let bits = 8 * *bytes as u32;
                let fits = if *signed {
                    *value >> (bits - 1) == *value >> 63
                } else {
                    *value >> bits == 0
                };
                assert!(fits, "{} = {value} does not fit", field.name);
                self.out
                    .extend_from_slice(&value.to_be_bytes()[8 - bytes..]);
            }
            (Kind::Float, Value::Float(value)) => self.out.extend_from_slice(&value.to_be_bytes()),
            (Kind::Uuid, Value::Uuid(bytes)) => self.out.extend_from_slice(bytes),
            (Kind::Text, Value::Null) if field.inflexible => {
                self.out.extend_from_slice(&[0xff, 0xff])
            }
            (Kind::Text, Value::Text(text)) if field.inflexible => {
                self.out
                    .extend_from_slice(&(text.len() as i16).to_be_bytes());
                self.out.extend_from_slice(text.as_bytes());
            }
            (Kind::Text, Value::Null) => self.length(None, true),
            (Kind::Text, Value::Text(text)) => {
                self.length(Some(text.len()), true);
                self.out.extend_from_slice(text.as_bytes());
            }
            (Kind::Bytes, Value::Null) => self.length(None, false),
            (Kind::Bytes, Value::Bytes(bytes)) => {
                self.length(Some(bytes.len()), false);
                self.out.extend_from_slice(bytes);
            }
            // As a tagged field null is the varint 0, elsewhere the byte -1.
            (Kind::Struct(_), Value::Null) => {
                self.out.push(if field.tag.is_some() { 0 } else { 0xff })
            }
            (Kind::Struct(name), value) => {
                if field.nullable.is_some() {
                    self.out.push(1);
                }
                self.fields(self.message.struct_fields(field, name), value);
            }
            (kind, value) => panic!("{}: {value:?} is not a {kind:?}", field.name),
        }
    }

    fn length(&mut self, length: Option<usize>, short: bool) {
        if self.message.is_flexible(self.version) {
            self.uvarint(length.map_or(0, |length| length as u32 + 1));
        } else if short {
            self.out
                .extend_from_slice(&length.map_or(-1, |length| length as i16).to_be_bytes());
        } else {
            self.out
                .extend_from_slice(&length.map_or(-1, |length| length as i32).to_be_bytes());
        }
    }

    fn uvarint(&mut self, value: u32) {
        let mut rest = value;
        loop {
            let low = (rest & 0x7f) as u8;
            rest >>= 7;
            if rest == 0 {
                return self.out.push(low);
            }
            self.out.push(low | 0x80);
        }
    }
}

struct Decoder<'a> {
    message: &'a Message,
    version: i16,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Decoder<'a> {
    fn fields(&mut self, fields: &[Field]) -> Result<Value, String> {
        let mut found = BTreeMap::new();
        let version = self.version;
        for field in fields.iter().filter(|field| field.is_in(version)) {
            let value = match field.tag {
                None => self
                    .field(field)
                    .map_err(|why| format!("{}: {why}", field.name))?,
                Some(_) => self.message.default(field, self.version),
            };
            found.insert(field.name.clone(), value);
        }
        if self.message.is_flexible(self.version) {
            let mut last = None;
            for _ in 0..self.uvarint()? {
                let (tag, size) = (self.uvarint()?, self.uvarint()? as usize);
                if last.is_some_and(|last| last >= tag) {
                    return Err(format!("tag {tag} behind {last:?}"));
                }
                last = Some(tag);
                let known = fields
                    .iter()
                    .find(|f| f.tag == Some(tag) && f.is_in(self.version));
                let field = known.ok_or_else(|| format!("unknown tag {tag}"))?;
                let start = self.at;
                found.insert(field.name.clone(), self.field(field)?);
                if self.at - start != size {
                    return Err(format!(
                        "tag {tag} took {} bytes of {size}",
                        self.at - start
                    ));
                }
            }
        }
        Ok(Value::Struct(found))
    }

    fn field(&mut self, field: &Field) -> Result<Value, String> {
        if !field.array {
            return self.single(field);
        }
        let Some(count) = self.length(field, false)? else {
            return Ok(Value::Null);
        };
        let single = Field {
            nullable: None,
            ..field.clone()
        };
        let mut list = Vec::new();
        for _ in 0..count {
            list.push(self.single(&single)?);
        }
        Ok(Value::Array(list))
    }

    fn single(&mut self, field: &Field) -> Result<Value, String> {
        Ok(match &field.kind {
            Kind::Bool => match self.take(1)?[0] {
                0 => Value::Bool(false),
                1 => Value::Bool(true),
                other => return Err(format!("a bool of {other}")),
            },
            Kind::Int { bytes, signed } => {
                let taken = self.take(*bytes)?;
                let fill = if *signed && taken[0] & 0x80 != 0 {
                    0xff
                } else {
                    0
                };
                let mut wide = [fill; 8];
                wide[8 - bytes..].copy_from_slice(taken);
                Value::Int(i64::from_be_bytes(wide))
            }
            Kind::Float => Value::Float(f64::from_be_bytes(self.take(8)?.try_into().unwrap())),
            Kind::Uuid => Value::Uuid(self.take(16)?.try_into().unwrap()),
            Kind::Text => match self.length(field, true)? {
                None => Value::Null,
                Some(length) => {
                    let text =
                        std::str::from_utf8(self.take(length)?).map_err(|e| e.to_string())?;
                    Value::Text(text.to_string())
                }
            },
            Kind::Bytes => match self.length(field, false)? {
                None => Value::Null,
                Some(length) => Value::Bytes(self.take(length)?.to_vec()),
            },
            Kind::Struct(name) => {
                if field.nullable.is_some() {
                    match (self.take(1)?[0], field.tag) {
                        (1, _) => {}
                        (0xff, None) | (0, Some(_)) => return Ok(Value::Null),
                        (other, _) => return Err(format!("{other} in front of a struct")),
                    }
                }
                self.fields(self.message.struct_fields(field, name))?
            }
        })
    }

    fn length(&mut self, field: &Field, short: bool) -> Result<Option<usize>, String> {
        let length = if self.message.is_flexible(self.version) && !field.inflexible {
            i64::from(self.uvarint()?) - 1
        } else if short {
            i64::from(i16::from_be_bytes(self.take(2)?.try_into().unwrap()))
        } else {
            i64::from(i32::from_be_bytes(self.take(4)?.try_into().unwrap()))
        };
        match length {
            -1 if field.nulls(self.version) => Ok(None),
            0.. => Ok(Some(length as usize)),
            _ => Err(format!("a length of {length}")),
        }
    }

    fn uvarint(&mut self) -> Result<u32, String> {
        let mut value = 0u64;
        for shift in 0..5 {
            let byte = self.take(1)?[0];
            value |= u64::from(byte & 0x7f) << (7 * shift);
            if byte < 0x80 {
                return u32::try_from(value).map_err(|e| e.to_string());
            }
        }
        Err("a varint without end".into())
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], String> {
        let end = self
            .at
            .checked_add(count)
            .filter(|end| *end <= self.bytes.len());
        let end = end.ok_or_else(|| format!("{count} bytes wanted"))?;
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }
}

// ---- random values

impl Message {
    /// A random value of the version: nulls, empty and long strings and arrays, extreme numbers, set and unset tagged fields.
    pub fn arbitrary(&self, version: i16, rng: &mut Rng) -> Value {
        self.arbitrary_fields(&self.fields, version, rng)
    }

    fn arbitrary_fields(&self, fields: &[Field], version: i16, rng: &mut Rng) -> Value {
        let mut made = BTreeMap::new();
        for field in fields.iter().filter(|field| field.is_in(version)) {
            let value = if field.tag.is_some() && rng.one_in(2) {
                self.default(field, version)
            } else if field.nulls(version) && rng.one_in(4) {
                Value::Null
            } else if field.array {
                let many = rng.one_in(20) && !matches!(field.kind, Kind::Struct(_));
                let count = if many {
                    rng.range(120, 300)
                } else {
                    rng.below(4)
                };
                Value::Array(
                    (0..count)
                        .map(|_| self.arbitrary_single(field, version, rng))
                        .collect(),
                )
            } else {
                self.arbitrary_single(field, version, rng)
            };
            made.insert(field.name.clone(), value);
        }
        Value::Struct(made)
    }

    fn arbitrary_single(&self, field: &Field, version: i16, rng: &mut Rng) -> Value {
        match &field.kind {
            Kind::Bool => Value::Bool(rng.one_in(2)),
            Kind::Int { bytes, signed } => {
                let bits = 8 * *bytes as u32;
                let raw = match rng.below(4) {
                    0 => rng.below(10) as i64 - 2,
                    1 => [i64::MIN, i64::MAX, 0, -1][rng.below(4) as usize],
                    _ => rng.next_u64() as i64,
                };
                let shift = 64 - bits;
                // The low bits, sign-extended or not.
                Value::Int(if *signed {
                    raw << shift >> shift
                } else {
                    ((raw as u64) << shift >> shift) as i64
                })
            }
            Kind::Float => Value::Float(rng.next_u64() as i64 as f64 / 1024.0),
            Kind::Uuid => Value::Uuid(rng.uuid().0),
            Kind::Text => {
                let length = if rng.one_in(20) {
                    rng.range(100, 400)
                } else {
                    rng.below(12)
                };
                let letters = ['a', 'Z', '0', '-', 'é', '漢', '🦀', '\0'];
                Value::Text(
                    (0..length)
                        .map(|_| letters[rng.below(8) as usize])
                        .collect(),
                )
            }
            Kind::Bytes => {
                let length = if rng.one_in(20) {
                    rng.range(100, 400)
                } else {
                    rng.below(12)
                };
                Value::Bytes((0..length).map(|_| rng.next_u64() as u8).collect())
            }
            Kind::Struct(name) => {
                self.arbitrary_fields(self.struct_fields(field, name), version, rng)
            }
        }
    }
}
