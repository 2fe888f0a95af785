//! Types of config values, their checks, and Kafka's messages for what does not fit.

use std::fmt;

/// The type of a config, with Kafka's name and its number in DescribeConfigs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Boolean,
    String,
    Int,
    Short,
    Long,
    Double,
    List,
    Class,
    Password,
}

impl Kind {
    pub(super) fn parse(text: &str) -> Option<Kind> {
        Some(match text {
            "BOOLEAN" => Kind::Boolean,
            "STRING" => Kind::String,
            "INT" => Kind::Int,
            "SHORT" => Kind::Short,
            "LONG" => Kind::Long,
            "DOUBLE" => Kind::Double,
            "LIST" => Kind::List,
            "CLASS" => Kind::Class,
            "PASSWORD" => Kind::Password,
            _ => return None,
        })
    }

    /// As DescribeConfigs v3+ reports it.
    pub fn code(self) -> i8 {
        match self {
            Kind::Boolean => 1,
            Kind::String => 2,
            Kind::Int => 3,
            Kind::Short => 4,
            Kind::Long => 5,
            Kind::Double => 6,
            Kind::List => 7,
            Kind::Class => 8,
            Kind::Password => 9,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Kind::Boolean => "BOOLEAN",
            Kind::String => "STRING",
            Kind::Int => "INT",
            Kind::Short => "SHORT",
            Kind::Long => "LONG",
            Kind::Double => "DOUBLE",
            Kind::List => "LIST",
            Kind::Class => "CLASS",
            Kind::Password => "PASSWORD",
        }
    }
}

/// What a value may be, beyond its type.
#[derive(Clone, PartialEq, Debug)]
pub enum Valid {
    Any,
    AtLeast(i64),
    Between(f64, f64),
    OneOf(Vec<&'static str>),
    /// A compression level: a range, and one value outside it that means "the codec's default".
    Level {
        min: i64,
        max: i64,
        or: i64,
    },
    /// `*` or `partition:broker` pairs.
    Throttled,
    /// Items from `of` (any, when that is empty); none at all only with `empty`.
    List {
        empty: bool,
        of: Vec<&'static str>,
    },
}

impl Valid {
    pub(super) fn parse(text: &'static str) -> Option<Valid> {
        let items = |text: &'static str| -> Vec<&'static str> {
            text.split(',').filter(|item| !item.is_empty()).collect()
        };
        if text.is_empty() {
            return Some(Valid::Any);
        }
        if text == "throttled" {
            return Some(Valid::Throttled);
        }
        if let Some(min) = text.strip_prefix(">= ") {
            return Some(Valid::AtLeast(min.parse().ok()?));
        }
        if let Some(of) = text.strip_prefix("in ") {
            return Some(Valid::OneOf(items(of)));
        }
        if let Some(of) = text.strip_prefix("list?") {
            return Some(Valid::List {
                empty: true,
                of: items(of.trim_start()),
            });
        }
        if let Some(of) = text.strip_prefix("list") {
            return Some(Valid::List {
                empty: false,
                of: items(of.trim_start()),
            });
        }
        if let Some(level) = text.strip_prefix("level ") {
            let mut numbers = level.split(' ').map(|n| n.parse().ok());
            return Some(Valid::Level {
                min: numbers.next()??,
                max: numbers.next()??,
                or: numbers.next()??,
            });
        }
        let (min, max) = text.split_once(" .. ")?;
        Some(Valid::Between(min.parse().ok()?, max.parse().ok()?))
    }

    /// `None` when the value fits, else the end of Kafka's message.
    fn check(&self, name: &str, value: &Value) -> Option<String> {
        match (self, value) {
            (Valid::Any, _) => None,
            (_, Value::Null) => Some("Value must be non-null".into()),
            (Valid::AtLeast(min), Value::Number(n)) => {
                (n < min).then(|| format!("Value must be at least {min}"))
            }
            (Valid::AtLeast(min), Value::Double(n)) => {
                (*n < *min as f64).then(|| format!("Value must be at least {min}"))
            }
            (Valid::Between(min, max), Value::Number(_) | Value::Double(_)) => {
                let n = match value {
                    Value::Double(n) => *n,
                    Value::Number(n) => *n as f64,
                    _ => return None,
                };
                if n < *min {
                    Some(format!("Value must be at least {min}"))
                } else if n > *max {
                    Some(format!("Value must be no more than {max}"))
                } else {
                    None
                }
            }
            (Valid::OneOf(of), Value::Text(text)) => (!of.contains(&text.as_str()))
                .then(|| format!("String must be one of: {}", of.join(", "))),
            (Valid::Level { min, max, or }, Value::Number(n)) => (!(min..=max).contains(&n)
                && n != or)
                .then(|| format!("Value must be between {min} and {max} or equal to {or}")),
            (Valid::Throttled, Value::List(items)) => {
                let pair = |item: &String| {
                    let digits =
                        |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
                    item.is_empty()
                        || item
                            .split_once(':')
                            .is_some_and(|(a, b)| digits(a) && digits(b))
                };
                let fits = items.iter().all(pair) || items.concat().trim() == "*";
                (!fits).then(|| {
                    format!(
                        "{name} must be the literal '*' or a list of replicas in the following format: \
                         [partitionId]:[brokerId],[partitionId]:[brokerId],..."
                    )
                })
            }
            // The other checks of a list name the item; see `Def::parse`.
            _ => None,
        }
    }
}

/// A parsed value.
#[derive(Clone, PartialEq, Debug)]
pub enum Value {
    Null,
    Bool(bool),
    /// INT, SHORT and LONG.
    Number(i64),
    Double(f64),
    /// STRING, CLASS and PASSWORD.
    Text(String),
    List(Vec<String>),
}

impl Value {
    /// As DescribeConfigs gives it back (Kafka's `ConfigDef.convertToString`); `None` is null.
    pub fn to_text(&self) -> Option<String> {
        match self {
            Value::Null => None,
            Value::Bool(value) => Some(value.to_string()),
            Value::Number(value) => Some(value.to_string()),
            Value::Double(value) if value.abs() >= 1e7 => {
                // Java writes large doubles as 1.7976931348623157E308.
                let text = format!("{value:E}");
                Some(match text.split_once('E') {
                    Some((mantissa, exponent)) if !mantissa.contains('.') => {
                        format!("{mantissa}.0E{exponent}")
                    }
                    _ => text,
                })
            }
            Value::Double(value) => Some(format!("{value:?}")),
            Value::Text(value) => Some(value.clone()),
            Value::List(items) => Some(items.join(",")),
        }
    }
}

/// As Kafka prints a value inside an error message.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::List(items) => write!(f, "[{}]", items.join(", ")),
            other => f.write_str(other.to_text().as_deref().unwrap_or("null")),
        }
    }
}

/// Kafka's `ConfigException(name, value, message)`.
fn invalid(name: &str, value: impl fmt::Display, message: &str) -> String {
    format!("Invalid value {value} for configuration {name}: {message}")
}

/// Parses and checks `text` as Kafka's `ConfigDef` does; the error is its message.
pub(super) fn parse(name: &str, kind: Kind, valid: &Valid, text: &str) -> Result<Value, String> {
    let trimmed = text.trim();
    let number = |min: i64, max: i64| {
        trimmed
            .parse::<i64>()
            .ok()
            .filter(|n| (min..=max).contains(n))
            .map(Value::Number)
            .ok_or_else(|| invalid(name, text, &format!("Not a number of type {}", kind.name())))
    };
    let value = match kind {
        Kind::Boolean if trimmed.eq_ignore_ascii_case("true") => Value::Bool(true),
        Kind::Boolean if trimmed.eq_ignore_ascii_case("false") => Value::Bool(false),
        Kind::Boolean => {
            return Err(invalid(
                name,
                text,
                "Expected value to be either true or false",
            ));
        }
        Kind::Int => number(i64::from(i32::MIN), i64::from(i32::MAX))?,
        Kind::Short => number(i64::from(i16::MIN), i64::from(i16::MAX))?,
        Kind::Long => number(i64::MIN, i64::MAX)?,
        Kind::Double => match trimmed.parse::<f64>() {
            Ok(number) if number.is_finite() => Value::Double(number),
            _ => return Err(invalid(name, text, "Not a number of type DOUBLE")),
        },
        Kind::String | Kind::Class | Kind::Password => Value::Text(trimmed.to_string()),
        Kind::List if trimmed.is_empty() => Value::List(Vec::new()),
        Kind::List => {
            // Repeated items collapse (seen on a running broker).
            let mut items: Vec<String> = Vec::new();
            for item in trimmed.split(',').map(str::trim) {
                if !items.iter().any(|seen| seen == item) {
                    items.push(item.to_string());
                }
            }
            Value::List(items)
        }
    };
    if let (Valid::List { empty, of }, Value::List(items)) = (valid, &value) {
        check_list(name, *empty, of, items)?;
    }
    match valid.check(name, &value) {
        Some(message) => Err(invalid(name, &value, &message)),
        None => Ok(value),
    }
}

fn check_list(name: &str, empty: bool, of: &[&str], items: &[String]) -> Result<(), String> {
    if items.is_empty() && !empty {
        let allowed = if of.is_empty() {
            "any non-empty value".to_string()
        } else {
            format!("[{}]", of.join(", "))
        };
        return Err(format!(
            "Configuration '{name}' must not be empty. Valid values include: {allowed}"
        ));
    }
    for item in items {
        if item.is_empty() {
            return Err(format!("Configuration '{name}' values must not be empty."));
        }
        if !of.is_empty() && !of.contains(&item.as_str()) {
            return Err(invalid(
                name,
                item,
                &format!("String must be one of: {}", of.join(", ")),
            ));
        }
    }
    Ok(())
}
