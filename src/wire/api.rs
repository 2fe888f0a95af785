//! The table of APIs.

include!(concat!(env!("OUT_DIR"), "/api_key.rs"));

struct Api {
    key: ApiKey,
    name: &'static str,
    versions: (i16, i16),
    stable: i16,
    flexible: i16,
}

impl ApiKey {
    /// Every API, by key.
    pub fn all() -> impl Iterator<Item = ApiKey> {
        APIS.iter().map(|api| api.key)
    }

    /// `None` for a key that Kafka 4.4 does not have, or has no version of any more (4 to 7).
    pub fn from_i16(code: i16) -> Option<ApiKey> {
        let index = APIS.binary_search_by_key(&code, |api| api.key.code());
        index.ok().map(|index| APIS[index].key)
    }

    pub fn code(self) -> i16 {
        self as i16
    }

    pub fn name(self) -> &'static str {
        self.api().name
    }

    /// Lowest and highest version of the schema, both inclusive. The highest may be unstable: see [`ApiKey::latest_stable`].
    pub fn versions(self) -> (i16, i16) {
        self.api().versions
    }

    /// The highest version that is advertised.
    pub fn latest_stable(self) -> i16 {
        self.api().stable
    }

    /// The first version with compact encodings and tagged fields; `i16::MAX` if there is none. The same for requests and answers.
    pub fn first_flexible(self) -> i16 {
        self.api().flexible
    }

    fn api(self) -> &'static Api {
        let index = APIS.binary_search_by_key(&self.code(), |api| api.key.code());
        &APIS[index.expect("every key is in the table")]
    }
}
