//! `key=value` options, as Kafka's tools take them.

use std::collections::BTreeMap;

#[derive(Clone, Debug, Default)]
pub struct Properties(BTreeMap<String, String>);

impl Properties {
    pub fn of(pairs: &[String]) -> Result<Properties, String> {
        let mut properties = Properties::default();
        properties.add_pairs(pairs)?;
        Ok(properties)
    }

    /// Each of `pairs` may hold several with commas between if every part has a `=`, as Kafka's tools allow.
    pub fn add_pairs(&mut self, pairs: &[String]) -> Result<(), String> {
        for pair in pairs {
            let (key, value) = pair
                .split_once('=')
                .ok_or_else(|| format!("'{pair}' is not KEY=VALUE"))?;
            self.0.insert(key.trim().to_string(), value.to_string());
        }
        Ok(())
    }

    /// Lines of a properties file.
    pub fn add_text(&mut self, text: &str) {
        for line in text.lines().map(str::trim) {
            if line.is_empty() || line.starts_with(['#', '!']) {
                continue;
            }
            let (key, value) = line.split_once(['=', ':']).unwrap_or((line, ""));
            self.0
                .insert(key.trim().to_string(), value.trim().to_string());
        }
    }

    pub fn remove(&mut self, key: &str) -> Option<String> {
        self.0.remove(key)
    }

    pub fn flag(&mut self, key: &str) -> Result<Option<bool>, String> {
        match self.remove(key).map(|v| v.to_ascii_lowercase()).as_deref() {
            None => Ok(None),
            Some("true") => Ok(Some(true)),
            Some("false") => Ok(Some(false)),
            Some(other) => Err(format!("{key}={other} is neither true nor false")),
        }
    }

    pub fn number<N: std::str::FromStr>(&mut self, key: &str) -> Result<Option<N>, String> {
        self.remove(key)
            .map(|v| {
                v.trim()
                    .parse()
                    .map_err(|_| format!("{key}={v} is not a number of the right size"))
            })
            .transpose()
    }

    /// What nobody took: unknown, and so an error that names it.
    pub fn finish(self, what: &str) -> Result<(), String> {
        match self.0.keys().next() {
            None => Ok(()),
            Some(key) => Err(format!("unknown {what} '{key}'")),
        }
    }

    /// The same for client properties, most of which a simple client has no use for.
    pub fn warn_unused(self) {
        for key in self.0.keys() {
            eprintln!("corelane: the client property '{key}' has no effect here");
        }
    }
}

/// `\t`, `\n` and the like in a separator.
pub fn unescape(text: &str) -> String {
    text.replace("\\t", "\t")
        .replace("\\n", "\n")
        .replace("\\r", "\r")
        .replace("\\0", "\0")
}
