//! Java's `.properties` text, as `java.util.Properties` reads it: that is what Kafka does with its files.

/// One key with its value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Property {
    pub key: String,
    pub value: String,
    /// Where it begins, from 1.
    pub line: usize,
}

/// Reads a file's bytes. They are Latin-1 to Java, whatever the editor thought; `\uXXXX` gives every other character. The error names
/// the line of a malformed `\u`, the only thing that Java refuses.
pub fn parse(bytes: &[u8]) -> Result<Vec<Property>, String> {
    let mut properties = Vec::new();
    for (line, logical) in logical_lines(bytes) {
        let (key, value) = split(&logical);
        let of_line = |_| format!("line {line}: a \\u needs four hexadecimal digits behind it");
        properties.push(Property {
            key: unescape(key).map_err(of_line)?,
            value: unescape(value).map_err(of_line)?,
            line,
        });
    }
    Ok(properties)
}

/// Lines that hold something, comments left out and continued ones put together; escapes are still in them.
fn logical_lines(bytes: &[u8]) -> Vec<(usize, Vec<u8>)> {
    let mut lines = Vec::new();
    let mut current: Option<(usize, Vec<u8>)> = None;
    for (at, line) in natural_lines(bytes).into_iter().enumerate() {
        let start = line.iter().position(|c| !is_blank(*c));
        let line = &line[start.unwrap_or(line.len())..];
        // Inside a continued line neither a blank line nor a # means anything special: the first ends it, the second is text.
        if current.is_none() && (line.is_empty() || line[0] == b'#' || line[0] == b'!') {
            continue;
        }
        let backslashes = line.iter().rev().take_while(|c| **c == b'\\').count();
        let continued = backslashes % 2 == 1;
        let (_, text) = current.get_or_insert_with(|| (at + 1, Vec::new()));
        text.extend_from_slice(&line[..line.len() - usize::from(continued)]);
        // A backslash with nothing before it begins nothing yet: what follows may still be a comment.
        if !continued || text.is_empty() {
            lines.extend(current.take().filter(|(_, text)| !text.is_empty()));
        }
    }
    lines.extend(current.filter(|(_, text)| !text.is_empty()));
    lines
}

/// Lines as the file has them: `\n`, `\r` and `\r\n` end one.
fn natural_lines(bytes: &[u8]) -> Vec<&[u8]> {
    let mut lines = Vec::new();
    let mut start = 0;
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at] == b'\n' || bytes[at] == b'\r' {
            lines.push(&bytes[start..at]);
            if bytes[at] == b'\r' && bytes.get(at + 1) == Some(&b'\n') {
                at += 1;
            }
            start = at + 1;
        }
        at += 1;
    }
    lines.push(&bytes[start..]);
    lines
}

/// The key ends at the first `=`, `:` or blank without a backslash; blanks around one separator belong to it.
fn split(line: &[u8]) -> (&[u8], &[u8]) {
    let mut escaped = false;
    let mut end = line.len();
    for (at, c) in line.iter().enumerate() {
        if !escaped && (matches!(c, b'=' | b':') || is_blank(*c)) {
            end = at;
            break;
        }
        escaped = *c == b'\\' && !escaped;
    }
    let (key, rest) = line.split_at(end);
    let mut value = skip_blanks(rest);
    if let Some(b'=' | b':') = value.first() {
        value = skip_blanks(&value[1..]);
    }
    (key, value)
}

fn skip_blanks(text: &[u8]) -> &[u8] {
    let start = text.iter().position(|c| !is_blank(*c));
    &text[start.unwrap_or(text.len())..]
}

fn is_blank(c: u8) -> bool {
    matches!(c, b' ' | b'\t' | b'\x0c')
}

struct MalformedUnicode;

/// Java's strings are UTF-16, so two `\u` may make one character.
fn unescape(text: &[u8]) -> Result<String, MalformedUnicode> {
    let mut units: Vec<u16> = Vec::with_capacity(text.len());
    let mut rest = text.iter().copied();
    while let Some(c) = rest.next() {
        if c != b'\\' {
            units.push(u16::from(c));
            continue;
        }
        match rest.next() {
            Some(b't') => units.push(0x09),
            Some(b'n') => units.push(0x0a),
            Some(b'f') => units.push(0x0c),
            Some(b'r') => units.push(0x0d),
            Some(b'u') => {
                let mut unit = 0;
                for _ in 0..4 {
                    let digit = rest.next().and_then(|c| char::from(c).to_digit(16));
                    unit = unit << 4 | digit.ok_or(MalformedUnicode)? as u16;
                }
                units.push(unit);
            }
            Some(other) => units.push(u16::from(other)),
            None => {}
        }
    }
    Ok(String::from_utf16_lossy(&units))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<(String, String)> {
        parse(text.as_bytes())
            .unwrap()
            .into_iter()
            .map(|p| (p.key, p.value))
            .collect()
    }

    fn one(text: &str) -> (String, String) {
        let mut all = read(text);
        assert_eq!(all.len(), 1, "{text:?}: {all:?}");
        all.remove(0)
    }

    fn pair(key: &str, value: &str) -> (String, String) {
        (key.to_string(), value.to_string())
    }

    /// Lines that `java.util.Properties` was asked about, from 20,000 random ones (a lone backslash at the end of the file is an empty
    /// key to Java and nothing to us; all others agreed).
    #[test]
    fn what_java_said() {
        assert_eq!(one("="), pair("", ""));
        assert_eq!(
            read("4a\ru\n\\#\\\r0 !#bnqu"),
            [pair("4a", ""), pair("u", ""), pair("#0", "!#bnqu")]
        );
        assert_eq!(read("u 0 \\= :n\\"), [pair("u", "0 = :n")]);
        assert_eq!(read("04\t\nu:ua"), [pair("04", ""), pair("u", "ua")]);
    }

    /// The examples of the documentation of `java.util.Properties.load`.
    #[test]
    fn the_examples_of_java() {
        for text in [
            "Truth = Beauty",
            " Truth:Beauty",
            "Truth                    :Beauty",
        ] {
            assert_eq!(one(text), pair("Truth", "Beauty"));
        }
        assert_eq!(
            one("fruits                           apple, banana, pear, \\\n\
                 \x20                                 cantaloupe, watermelon, \\\n\
                 \x20                                 kiwi, mango"),
            pair(
                "fruits",
                "apple, banana, pear, cantaloupe, watermelon, kiwi, mango"
            )
        );
        assert_eq!(one("cheeses"), pair("cheeses", ""));
        assert_eq!(one("\\:\\="), pair(":=", ""));
    }

    #[test]
    fn comments_and_blank_lines_are_nothing_but_not_inside_a_continued_line() {
        assert_eq!(
            read("# a=1\n  ! b=2\n\n \t\x0c\n#c \\\nd=4\n"),
            [pair("d", "4")]
        );
        assert_eq!(one("a=1,\\\n  # 2"), pair("a", "1,# 2"));
        assert_eq!(read("a=1,\\\n\nb=2"), [pair("a", "1,"), pair("b", "2")]);
        assert_eq!(read("\\\n# c\na=1"), [pair("a", "1")]);
    }

    #[test]
    fn separators_and_escapes() {
        assert_eq!(one("a\tb c"), pair("a", "b c"));
        assert_eq!(one("a = = b"), pair("a", "= b"));
        assert_eq!(one("a=b=c:d"), pair("a", "b=c:d"));
        assert_eq!(one("a\\ b\\=c\\:d=e"), pair("a b=c:d", "e"));
        assert_eq!(one("a=  b  "), pair("a", "b  "));
        assert_eq!(one(r"a=\tx\ny\rz\fw\q\\"), pair("a", "\tx\ny\rz\x0cwq\\"));
        assert_eq!(one(r"a=\u00e4\uD83D\uDE00"), pair("a", "ä😀"));
        assert_eq!(one("a=b\\"), pair("a", "b"));
        assert_eq!(one("a=b\\\\\n"), pair("a", "b\\"));
    }

    #[test]
    fn every_line_ending_ends_a_line_and_lines_are_counted() {
        let all = parse(b"a=1\r\nb=2\rc=\\\r\n  3\nd=4").unwrap();
        let seen: Vec<_> = all.iter().map(|p| (&*p.key, &*p.value, p.line)).collect();
        assert_eq!(
            seen,
            [("a", "1", 1), ("b", "2", 2), ("c", "3", 3), ("d", "4", 5)]
        );
    }

    #[test]
    fn bytes_are_latin_1() {
        assert_eq!(parse(b"a=\xe4").unwrap()[0].value, "ä");
    }

    #[test]
    fn a_malformed_unicode_escape_names_its_line() {
        for text in ["\n\na=\\u12", "\n\na=\\u12g4"] {
            assert!(parse(text.as_bytes()).unwrap_err().starts_with("line 3:"));
        }
    }
}
