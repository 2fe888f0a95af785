//! Build script: turns the schema texts of `src/wire/schema` into Rust, `OUT_DIR/msg.rs` and `OUT_DIR/api_key.rs`.
//!
//! The language, one line a message, struct or field; depth is two spaces of indentation:
//!
//! ```text
//! KIND NAME [api KEY] versions MIN[-MAX] [flexible MIN+] [unstable]    KIND: request response header data record key value
//!   FIELD TYPE [VERSIONS] [#TAG] [inflexible] [=DEFAULT]
//!     FIELD ...                                                       the fields of the struct that TYPE names
//!   struct NAME                                                       a struct that several fields name
//! ```
//!
//! TYPE is `bool int8 int16 uint16 int32 uint32 int64 float64 uuid string bytes records`, a struct, or `[]` and one of these.
//! `?` behind it: nullable; `?3+`: nullable in these versions only. VERSIONS is `N`, `N-M` or `N+`; without it a field is in every
//! version in which its parent is. `unstable`: the highest version is not advertised. DEFAULT is what Kafka gives a field that is not
//! set; without it 0, false, empty (also for nullable types: they are null by default only with `=null`).
//!
//! What is generated is kept small, since it is most of what the crate compiles: one `read` and one `write` per struct, straight lines
//! over the helpers of `Reader` and `Writer`, and everything `#[inline]`, so that a message nobody calls costs no machine code.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

const LAST: i16 = i16::MAX;

fn main() {
    // The fuzz crate, two folders down, builds the same messages.
    let manifest = PathBuf::from(env::var("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let mut above = manifest.ancestors().map(|dir| dir.join("src/wire/schema"));
    let dir = above.find(|dir| dir.is_dir()).expect("the schema folder");
    println!("cargo:rerun-if-changed={}", dir.display());
    let mut paths: Vec<PathBuf> = fs::read_dir(&dir)
        .expect("the schema folder")
        .map(|entry| entry.expect("an entry of the schema folder").path())
        .filter(|path| path.extension().is_some_and(|ext| ext == "schema"))
        .collect();
    paths.sort();
    let mut messages = Vec::new();
    for path in &paths {
        println!("cargo:rerun-if-changed={}", path.display());
        messages.extend(parse(path));
    }
    let out = PathBuf::from(env::var("OUT_DIR").expect("cargo sets it"));
    fs::write(out.join("msg.rs"), msg_rs(&messages)).expect("writing msg.rs");
    fs::write(out.join("api_key.rs"), api_key_rs(&messages)).expect("writing api_key.rs");
}

// ---- the schema

struct Message {
    kind: String,
    name: String,
    api: Option<i16>,
    versions: (i16, i16),
    flexible: i16,
    unstable: bool,
    /// The message itself first, then its structs.
    structs: Vec<Struct>,
}

struct Struct {
    name: String,
    fields: Vec<Field>,
}

struct Field {
    name: String,
    base: Base,
    array: bool,
    nullable: Option<(i16, i16)>,
    /// `None`: wherever the parent is.
    versions: Option<(i16, i16)>,
    tag: Option<u32>,
    inflexible: bool,
    default: Option<String>,
}

#[derive(PartialEq)]
enum Base {
    /// Name of the Rust type, and of the methods of Reader and Writer; bytes on the wire.
    Scalar(&'static str, usize),
    Uuid,
    String,
    Bytes,
    Records,
    Struct(String),
}

fn parse(path: &Path) -> Vec<Message> {
    let text = fs::read_to_string(path).expect("a schema file");
    let mut messages: Vec<Message> = Vec::new();
    // Which struct a line of each depth belongs to.
    let mut owners: Vec<usize> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let fail =
            |what: &str| -> ! { panic!("{}:{}: {what}: {line}", path.display(), number + 1) };
        let body = line.trim_start();
        if body.is_empty() || body.starts_with('#') {
            continue;
        }
        let depth = (line.len() - body.len()) / 2;
        let words: Vec<&str> = body.split(' ').collect();
        if depth == 0 {
            messages.push(parse_head(&words).unwrap_or_else(|| fail("not a message")));
            owners = vec![0];
            continue;
        }
        let message = messages
            .last_mut()
            .unwrap_or_else(|| fail("outside a message"));
        if depth > owners.len() {
            fail("indented too far");
        }
        owners.truncate(depth);
        if words[0] == "struct" {
            message.structs.push(Struct {
                name: words[1].to_string(),
                fields: Vec::new(),
            });
            owners.push(message.structs.len() - 1);
            continue;
        }
        let field = parse_field(&words).unwrap_or_else(|| fail("not a field"));
        // The next deeper lines are fields of the struct that this field names; a field without such lines names a common struct.
        if let Base::Struct(name) = &field.base {
            let next = text.lines().nth(number + 1).unwrap_or("");
            if next.len() - next.trim_start().len() > depth * 2 {
                message.structs.push(Struct {
                    name: name.clone(),
                    fields: Vec::new(),
                });
                owners.push(message.structs.len() - 1);
            }
        }
        message.structs[owners[depth - 1]].fields.push(field);
    }
    messages
}

fn parse_head(words: &[&str]) -> Option<Message> {
    let (kind, name) = (words.first()?.to_string(), words.get(1)?.to_string());
    let root = Struct {
        name: name.clone(),
        fields: Vec::new(),
    };
    let mut message = Message {
        kind,
        name,
        api: None,
        versions: (0, 0),
        flexible: LAST,
        unstable: false,
        structs: vec![root],
    };
    let mut rest = words[2..].iter();
    while let Some(&word) = rest.next() {
        match word {
            "api" => message.api = Some(rest.next()?.parse().ok()?),
            "versions" => message.versions = parse_versions(rest.next()?)?,
            "flexible" => message.flexible = parse_versions(rest.next()?)?.0,
            "unstable" => message.unstable = true,
            _ => return None,
        }
    }
    Some(message)
}

fn parse_versions(text: &str) -> Option<(i16, i16)> {
    if let Some(from) = text.strip_suffix('+') {
        return Some((from.parse().ok()?, LAST));
    }
    let (from, to) = text.split_once('-').unwrap_or((text, text));
    Some((from.parse().ok()?, to.parse().ok()?))
}

fn parse_field(words: &[&str]) -> Option<Field> {
    let (name, kind) = (words.first()?.to_string(), *words.get(1)?);
    let (array, kind) = kind
        .strip_prefix("[]")
        .map_or((false, kind), |kind| (true, kind));
    let (kind, nullable) = match kind.split_once('?') {
        None => (kind, None),
        Some((kind, "")) => (kind, Some((0, LAST))),
        Some((kind, versions)) => (kind, Some(parse_versions(versions)?)),
    };
    let base = match kind {
        "bool" => Base::Scalar("bool", 1),
        "int8" => Base::Scalar("i8", 1),
        "int16" => Base::Scalar("i16", 2),
        "uint16" => Base::Scalar("u16", 2),
        "int32" => Base::Scalar("i32", 4),
        "uint32" => Base::Scalar("u32", 4),
        "int64" => Base::Scalar("i64", 8),
        "float64" => Base::Scalar("f64", 8),
        "uuid" => Base::Uuid,
        "string" => Base::String,
        "bytes" => Base::Bytes,
        "records" => Base::Records,
        name if name.starts_with(|c: char| c.is_ascii_uppercase()) => {
            Base::Struct(name.to_string())
        }
        _ => return None,
    };
    let mut field = Field {
        name,
        base,
        array,
        nullable,
        versions: None,
        tag: None,
        inflexible: false,
        default: None,
    };
    for word in &words[2..] {
        if let Some(default) = word.strip_prefix('=') {
            field.default = Some(default.to_string());
        } else if let Some(tag) = word.strip_prefix('#') {
            field.tag = Some(tag.parse().ok()?);
        } else if *word == "inflexible" {
            field.inflexible = true;
        } else {
            field.versions = Some(parse_versions(word)?);
        }
    }
    Some(field)
}

// ---- names

fn snake(name: &str) -> String {
    let name = name.replace("KRaft", "Kraft").replace("kRaft", "kraft");
    let chars: Vec<char> = name.chars().collect();
    let mut out = String::new();
    for (i, c) in chars.iter().enumerate() {
        let after_lower = i > 0 && !chars[i - 1].is_ascii_uppercase();
        let before_lower = chars
            .get(i + 1)
            .is_some_and(|next| next.is_ascii_lowercase());
        if c.is_ascii_uppercase() && i > 0 && (after_lower || before_lower) {
            out.push('_');
        }
        out.push(c.to_ascii_lowercase());
    }
    out
}

fn field_name(field: &Field) -> String {
    match snake(&field.name).as_str() {
        "type" => "r#type".into(),
        "match" => "r#match".into(),
        name => name.into(),
    }
}

// ---- questions to the schema

impl Message {
    fn find(&self, name: &str) -> &Struct {
        let found = self.structs.iter().find(|s| s.name == name);
        found.unwrap_or_else(|| panic!("{} has no struct {name}", self.name))
    }

    /// Whether a struct holds borrowed text or bytes.
    fn borrows(&self, name: &str) -> bool {
        self.find(name)
            .fields
            .iter()
            .any(|field| match &field.base {
                Base::String | Base::Bytes | Base::Records => true,
                Base::Struct(name) => self.borrows(name),
                Base::Scalar(..) | Base::Uuid => false,
            })
    }

    /// The fewest bytes an element takes on the wire in any version. A count above `remaining / bytes_min` is a lie.
    fn bytes_min(&self, base: &Base) -> usize {
        let flexible = self.flexible != LAST;
        match base {
            Base::Scalar(_, bytes) => *bytes,
            Base::Uuid => 16,
            Base::String => 1 + usize::from(!flexible),
            Base::Bytes | Base::Records => {
                if flexible {
                    1
                } else {
                    4
                }
            }
            Base::Struct(name) => {
                let always = |f: &&Field| f.versions.is_none() && f.tag.is_none();
                let fields = self.find(name).fields.iter().filter(always);
                let sum: usize = fields.map(|f| self.field_bytes_min(f)).sum();
                sum + usize::from(self.flexible <= self.versions.0)
            }
        }
    }

    fn field_bytes_min(&self, field: &Field) -> usize {
        if field.array {
            return if self.flexible == LAST { 4 } else { 1 };
        }
        match field.base {
            Base::Struct(_) if field.nullable.is_some() => 1,
            ref base => self.bytes_min(base),
        }
    }
}

fn element_type(message: &Message, base: &Base) -> String {
    match base {
        Base::Scalar(rust, _) => rust.to_string(),
        Base::Uuid => "Uuid".into(),
        Base::String => "Cow<'a, str>".into(),
        Base::Bytes => "Cow<'a, [u8]>".into(),
        Base::Records => "Records<'a>".into(),
        Base::Struct(name) => format!("{name}{}", if message.borrows(name) { "<'a>" } else { "" }),
    }
}

fn field_type(message: &Message, field: &Field) -> String {
    let mut rust = element_type(message, &field.base);
    if field.array {
        rust = format!("Vec<{rust}>");
    }
    // `Records` has a null of its own.
    if field.nullable.is_some() && field.base != Base::Records {
        rust = format!("Option<{rust}>");
    }
    rust
}

/// A field's default where it differs from that of its Rust type.
fn own_default(field: &Field) -> Option<String> {
    let null = field.default.as_deref() == Some("null");
    match (&field.default, field.nullable) {
        _ if field.base == Base::Records || null => None,
        (Some(value), None) => Some(value.clone()),
        (None, Some(_)) => Some("Some(Default::default())".into()),
        (None, None) => None,
        (Some(_), Some(_)) => panic!("a default of a nullable field: {}", field.name),
    }
}

/// `v >= 3 && v <= 7`, leaving out what the message's own range already says.
fn version_test(message: &Message, versions: Option<(i16, i16)>) -> Option<String> {
    let (from, to) = versions?;
    let mut tests = Vec::new();
    if from > message.versions.0 {
        tests.push(format!("v >= {from}"));
    }
    if to < message.versions.1 {
        tests.push(format!("v <= {to}"));
    }
    (!tests.is_empty()).then(|| tests.join(" && "))
}

/// The expression that says whether null is allowed in version `v`.
fn null_test(message: &Message, field: &Field) -> String {
    match field.nullable {
        None => "false".into(),
        some => version_test(message, some).unwrap_or_else(|| "true".into()),
    }
}

// ---- the code

fn msg_rs(messages: &[Message]) -> String {
    let mut out = String::new();
    for message in messages {
        writeln!(
            out,
            "pub mod {} {{\nuse super::support::*;",
            snake(&message.name)
        )
        .unwrap();
        for s in &message.structs {
            struct_rs(&mut out, message, s);
        }
        message_rs(&mut out, message);
        out.push_str("}\n");
    }
    catalogue_rs(&mut out, messages);
    out
}

fn struct_rs(out: &mut String, message: &Message, s: &Struct) {
    let life = if message.borrows(&s.name) { "<'a>" } else { "" };
    let reader = if life.is_empty() {
        "Reader"
    } else {
        "Reader<'a>"
    };
    let plain = s.fields.iter().all(|field| own_default(field).is_none());
    let derive = if plain { ", Default" } else { "" };
    writeln!(
        out,
        "#[derive(Clone, Debug, PartialEq{derive})]\npub struct {}{life} {{",
        s.name
    )
    .unwrap();
    for field in &s.fields {
        writeln!(
            out,
            "pub {}: {},",
            field_name(field),
            field_type(message, field)
        )
        .unwrap();
    }
    out.push_str("}\n");
    if !plain {
        writeln!(
            out,
            "impl{life} Default for {}{life} {{ #[inline] fn default() -> Self {{ Self {{",
            s.name
        )
        .unwrap();
        for field in &s.fields {
            let value = own_default(field).unwrap_or_else(|| "Default::default()".into());
            writeln!(out, "{}: {value},", field_name(field)).unwrap();
        }
        out.push_str("} } }\n");
    }
    writeln!(out, "impl{life} {}{life} {{", s.name).unwrap();
    read_rs(out, message, s, reader);
    write_rs(out, message, s);
    out.push_str("}\n");
}

fn read_rs(out: &mut String, message: &Message, s: &Struct, reader: &str) {
    writeln!(out, "#[inline] pub(crate) fn read(r: &mut {reader}, v: i16) -> Self {{\nlet mut m = Self::default();").unwrap();
    for field in s.fields.iter().filter(|f| f.tag.is_none()) {
        let assign = format!("m.{} = {};", field_name(field), read_expr(message, field));
        match version_test(message, field.versions) {
            None => writeln!(out, "{assign}").unwrap(),
            Some(test) => writeln!(out, "if {test} {{ {assign} }}").unwrap(),
        }
    }
    let tagged: Vec<&Field> = s.fields.iter().filter(|f| f.tag.is_some()).collect();
    if message.flexible == LAST {
    } else if tagged.is_empty() {
        out.push_str("r.skip_tags();\n");
    } else {
        out.push_str("r.tags(|r, tag| {\nmatch tag {\n");
        for field in tagged {
            let test = version_test(message, field.versions);
            let tag = field.tag.unwrap();
            let guard = test
                .as_ref()
                .map_or(String::new(), |test| format!(" if {test}"));
            writeln!(
                out,
                "{tag}{guard} => m.{} = {},",
                field_name(field),
                read_expr(message, field)
            )
            .unwrap();
            if test.is_some() {
                writeln!(out, "{tag} => r.fail(\"a tag that this version lacks\"),").unwrap();
            }
        }
        out.push_str("_ => return false,\n}\ntrue\n});\n");
    }
    out.push_str("m\n}\n");
}

fn read_expr(message: &Message, field: &Field) -> String {
    let nulls = null_test(message, field);
    let nullable = field.nullable.is_some();
    if field.array {
        let each = match &field.base {
            Base::Scalar(rust, _) => format!("Reader::{rust}"),
            Base::Uuid => "Reader::uuid".into(),
            Base::String => "Reader::string".into(),
            Base::Bytes => "Reader::bytes".into(),
            Base::Records => panic!("an array of records"),
            Base::Struct(name) => format!("|r| {name}::read(r, v)"),
        };
        let bytes_min = message.bytes_min(&field.base);
        return if nullable {
            format!("r.nullable_array({nulls}, {bytes_min}, {each})")
        } else {
            format!("r.array({bytes_min}, {each})")
        };
    }
    match &field.base {
        Base::Scalar(rust, _) => format!("r.{rust}()"),
        Base::Uuid => "r.uuid()".into(),
        Base::String if field.inflexible => "r.nullable_string_inflexible()".into(),
        Base::String if nullable => format!("r.nullable_string({nulls})"),
        Base::String => "r.string()".into(),
        Base::Bytes if nullable => format!("r.nullable_bytes({nulls})"),
        Base::Bytes => "r.bytes()".into(),
        Base::Records => format!("r.records({nulls})"),
        Base::Struct(name) if nullable => {
            let tagged = if field.tag.is_some() { "_tagged" } else { "" };
            format!("r.nullable_struct{tagged}(|r| {name}::read(r, v))")
        }
        Base::Struct(name) => format!("{name}::read(r, v)"),
    }
}

fn write_rs(out: &mut String, message: &Message, s: &Struct) {
    out.push_str("#[inline] pub(crate) fn write(&self, w: &mut Writer, v: i16) {\n");
    for field in s.fields.iter().filter(|f| f.tag.is_none()) {
        let line = write_expr(message, field);
        match version_test(message, field.versions) {
            None => writeln!(out, "{line};").unwrap(),
            Some(test) => writeln!(out, "if {test} {{ {line}; }}").unwrap(),
        }
    }
    let mut tagged: Vec<&Field> = s.fields.iter().filter(|f| f.tag.is_some()).collect();
    tagged.sort_by_key(|field| field.tag);
    if message.flexible == LAST {
    } else if tagged.is_empty() {
        out.push_str("w.no_tags();\n");
    } else {
        out.push_str("let tags = w.tags();\n");
        for field in tagged {
            // A message may be flexible from a later version than its first: before that it has no tags at all.
            let from = field.versions.map_or(0, |(from, _)| from);
            assert!(
                from >= message.flexible || message.flexible <= message.versions.0,
                "a tag needs flexibility"
            );
            let mut test = version_test(message, field.versions)
                .map_or(String::new(), |test| format!("{test} && "));
            test.push_str(&differs_from_default(field));
            let tag = field.tag.unwrap();
            writeln!(
                out,
                "if {test} {{ w.tagged(tags, {tag}, |w| {}); }}",
                write_expr(message, field)
            )
            .unwrap();
        }
    }
    out.push_str("}\n");
}

fn differs_from_default(field: &Field) -> String {
    let name = format!("self.{}", field_name(field));
    let null = field.default.as_deref() == Some("null");
    match (&field.base, &field.default) {
        _ if null => format!("{name}.is_some()"),
        (_, Some(value)) => format!("{name} != {value}"),
        (Base::Struct(_), None) if !field.array && field.nullable.is_some() => {
            format!("{name} != Some(Default::default())")
        }
        (_, None) if field.array && field.nullable.is_some() => {
            format!("{name}.as_ref().is_none_or(|list| !list.is_empty())")
        }
        (_, None) if field.array => format!("!{name}.is_empty()"),
        // Not `!= Default::default()`: what a number compares with is open as soon as another crate adds to it.
        (_, None) => format!("!is_default(&{name})"),
    }
}

fn write_expr(message: &Message, field: &Field) -> String {
    let name = field_name(field);
    let nulls = null_test(message, field);
    let nullable = field.nullable.is_some();
    if field.array {
        let each = match &field.base {
            Base::Scalar(rust, _) => format!("|w, x| w.{rust}(*x)"),
            Base::Uuid => "|w, x| w.uuid(*x)".into(),
            Base::String => "|w, x| w.string(x)".into(),
            Base::Bytes => "|w, x| w.bytes(x)".into(),
            Base::Records => panic!("an array of records"),
            Base::Struct(_) => "|w, x| x.write(w, v)".into(),
        };
        return if nullable {
            format!("w.nullable_array(self.{name}.as_deref(), {nulls}, {each})")
        } else {
            format!("w.array(&self.{name}, {each})")
        };
    }
    match &field.base {
        Base::Scalar(rust, _) => format!("w.{rust}(self.{name})"),
        Base::Uuid => format!("w.uuid(self.{name})"),
        Base::String if field.inflexible => {
            format!("w.nullable_string_inflexible(self.{name}.as_deref())")
        }
        Base::String if nullable => format!("w.nullable_string(self.{name}.as_deref(), {nulls})"),
        Base::String => format!("w.string(&self.{name})"),
        Base::Bytes if nullable => format!("w.nullable_bytes(self.{name}.as_deref(), {nulls})"),
        Base::Bytes => format!("w.bytes(&self.{name})"),
        Base::Records => format!("w.records(&self.{name}, {nulls})"),
        Base::Struct(_) if nullable => {
            let tagged = if field.tag.is_some() { "_tagged" } else { "" };
            format!("w.nullable_struct{tagged}(self.{name}.as_ref(), |w, x| x.write(w, v))")
        }
        Base::Struct(_) => format!("self.{name}.write(w, v)"),
    }
}

fn message_rs(out: &mut String, message: &Message) {
    let (life, reader) = if message.borrows(&message.name) {
        ("<'a>", "Reader<'a>")
    } else {
        ("", "Reader")
    };
    let Message {
        name,
        versions: (min, max),
        flexible,
        ..
    } = message;
    writeln!(out, "impl{life} {name}{life} {{").unwrap();
    if let Some(api) = message.api {
        writeln!(out, "pub const API_KEY: i16 = {api};").unwrap();
    }
    writeln!(
        out,
        "pub const VERSIONS: (i16, i16) = ({min}, {max});
        pub const FIRST_FLEXIBLE: i16 = {flexible};
        #[inline] pub fn decode(r: &mut {reader}, version: i16) -> Result<Self, Malformed> {{
            r.begin(version, Self::VERSIONS, Self::FIRST_FLEXIBLE)?;
            let message = Self::read(r, version);
            r.end(message)
        }}
        #[inline] pub fn encode(&self, w: &mut Writer, version: i16) {{
            w.begin(version, Self::VERSIONS, Self::FIRST_FLEXIBLE);
            self.write(w, version);
        }}\n}}"
    )
    .unwrap();
}

/// What tests and fuzzing need to go over all messages: a list of them, and decoding and encoding by their place in it.
fn catalogue_rs(out: &mut String, messages: &[Message]) {
    out.push_str("pub const CATALOGUE: &[Entry] = &[\n");
    for m in messages {
        let api = m.api.unwrap_or(-1);
        let (min, max) = m.versions;
        writeln!(
            out,
            "Entry {{ kind: \"{}\", name: \"{}\", api: {api}, versions: ({min}, {max}) }},",
            m.kind, m.name
        )
        .unwrap();
    }
    out.push_str("];\n");
    let mut recode = String::new();
    let mut defaults = String::new();
    for (index, m) in messages.iter().enumerate() {
        let path = format!("{}::{}", snake(&m.name), m.name);
        writeln!(
            recode,
            "{index} => {path}::decode(r, version)?.encode(w, version),"
        )
        .unwrap();
        writeln!(defaults, "{index} => {path}::default().encode(w, version),").unwrap();
    }
    let none = "_ => panic!(\"the catalogue has no such message\")";
    writeln!(
        out,
        "#[inline] pub fn recode(index: usize, version: i16, r: &mut Reader, w: &mut Writer) -> Result<(), Malformed> {{
            match index {{\n{recode}{none}\n}}
            Ok(())
        }}
        #[inline] pub fn encode_default(index: usize, version: i16, w: &mut Writer) {{ match index {{\n{defaults}{none}\n}} }}"
    )
    .unwrap();
}

fn api_key_rs(messages: &[Message]) -> String {
    let mut apis: Vec<&Message> = messages.iter().filter(|m| m.kind == "request").collect();
    apis.sort_by_key(|m| m.api);
    let name = |m: &Message| m.name.trim_end_matches("Request").to_string();
    let mut out = String::from("/// Every API of Kafka 4.4 that has a version left.\n");
    out.push_str("#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]\n#[repr(i16)]\npub enum ApiKey {\n");
    for m in &apis {
        writeln!(
            out,
            "{} = {},",
            name(m),
            m.api.expect("a request has a key")
        )
        .unwrap();
    }
    out.push_str("}\nconst APIS: &[Api] = &[\n");
    for m in &apis {
        let response = messages
            .iter()
            .find(|r| r.kind == "response" && r.api == m.api)
            .expect("an answer");
        assert!(
            response.versions == m.versions && response.flexible == m.flexible,
            "{}",
            m.name
        );
        let (min, max) = m.versions;
        let stable = max - i16::from(m.unstable);
        writeln!(
            out,
            "Api {{ key: ApiKey::{0}, name: \"{0}\", versions: ({min}, {max}), stable: {stable}, flexible: {1} }},",
            name(m),
            m.flexible
        )
        .unwrap();
    }
    out.push_str("];\n");
    out
}
