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

    /// A properties file, as Java reads it.
    pub fn add_file(&mut self, path: &std::path::Path) -> Result<(), String> {
        let bytes = std::fs::read(path)
            .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        let properties = crate::node::config::properties::parse(&bytes)
            .map_err(|why| format!("{} {why}", path.display()))?;
        for property in properties {
            self.0.insert(property.key, property.value);
        }
        Ok(())
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
