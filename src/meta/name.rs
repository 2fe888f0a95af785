//! Kafka's rules for topic names.

use crate::model::limit::TOPIC_NAME_BYTES_MAX;

/// What is wrong with a topic name, in Kafka's words; `None` for a good one.
pub fn topic_name_fault(name: &str) -> Option<String> {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if name.is_empty() {
        Some("the empty string is not allowed".to_string())
    } else if name == "." || name == ".." {
        Some(format!("'{name}' is not allowed"))
    } else if name.encode_utf16().count() > TOPIC_NAME_BYTES_MAX {
        // Java counts UTF-16 units; a name of legal characters has as many bytes.
        Some(format!(
            "the length of '{name}' is longer than the max allowed length {TOPIC_NAME_BYTES_MAX}"
        ))
    } else if !name.chars().all(legal) {
        Some(format!(
            "'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
        ))
    } else {
        None
    }
}

pub fn is_valid_topic_name(name: &str) -> bool {
    topic_name_fault(name).is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_kafkas_rules() {
        for good in ["a", "a.b_c-D9", "...", &"x".repeat(249)] {
            assert!(is_valid_topic_name(good), "{good}");
        }
        for bad in [
            "",
            ".",
            "..",
            "a b",
            "ä",
            "a/b",
            "\u{fffd}",
            &"x".repeat(250),
        ] {
            assert!(!is_valid_topic_name(bad), "{bad}");
        }
    }
}
