//! Which CPUs the shards are pinned to.

use crate::model::limit;

/// `0-3,8` as [0, 1, 2, 3, 8], in the order in which they are written.
pub fn parse(text: &str) -> Result<Vec<usize>, String> {
    let mut cpus = Vec::new();
    for part in text.split(',').map(str::trim) {
        let number = |text: &str| {
            text.trim()
                .parse::<usize>()
                .ok()
                .filter(|cpu| *cpu < CPUS_MAX)
                .ok_or_else(|| format!("'{part}' is neither a CPU number nor a range"))
        };
        let (first, last) = match part.split_once('-') {
            Some((first, last)) => (number(first)?, number(last)?),
            None => (number(part)?, number(part)?),
        };
        if first > last {
            return Err(format!("the range {part} is backwards"));
        }
        for cpu in first..=last {
            if cpus.contains(&cpu) {
                return Err(format!("CPU {cpu} is named twice"));
            }
            cpus.push(cpu);
        }
    }
    Ok(cpus)
}

/// CPUs that Linux can be built for.
const CPUS_MAX: usize = 8192;

/// The other way round, for messages.
pub fn format(cpus: &[usize]) -> String {
    let mut parts: Vec<(usize, usize)> = Vec::new();
    for &cpu in cpus {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == cpu => *last = cpu,
            _ => parts.push((cpu, cpu)),
        }
    }
    let parts: Vec<String> = parts
        .iter()
        .map(|(first, last)| match last - first {
            0 => format!("{first}"),
            _ => format!("{first}-{last}"),
        })
        .collect();
    parts.join(",")
}

/// CPUs of this process's affinity mask.
pub fn of_process() -> Result<Vec<usize>, String> {
    let mask = rustix::thread::sched_getaffinity(None)
        .map_err(|error| format!("cannot ask which CPUs this process may run on: {error}"))?;
    Ok((0..rustix::thread::CpuSet::MAX_CPU)
        .filter(|cpu| mask.is_set(*cpu))
        .collect())
}

/// How many shards, on which CPUs, and what to say about it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Placement {
    pub shards: u16,
    pub cpus: Vec<usize>,
    pub warning: Option<String>,
}

/// `allowed` is the affinity mask; `shards` and `chosen` are what the operator set.
pub fn place(
    allowed: &[usize],
    shards: Option<u16>,
    chosen: Option<Vec<usize>>,
) -> Result<Placement, String> {
    if let Some(chosen) = &chosen
        && let Some(cpu) = chosen.iter().find(|cpu| !allowed.contains(cpu))
    {
        return Err(format!(
            "shard.cpus names CPU {cpu}, but this process may run on {} only",
            format(allowed)
        ));
    }
    let cpus = chosen.unwrap_or_else(|| allowed.to_vec());
    let shards = shards.unwrap_or(cpus.len().clamp(1, limit::SHARDS_MAX) as u16);
    let warning = (usize::from(shards) > cpus.len()).then(|| {
        format!(
            "{shards} shards share {} CPU{}: each is slower than a core of its own would be; shards={} gives each its own",
            cpus.len(),
            if cpus.len() == 1 { "" } else { "s" },
            cpus.len()
        )
    });
    Ok(Placement {
        shards,
        cpus,
        warning,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_ranges_read_and_print() {
        assert_eq!(parse("0-3, 8"), Ok(vec![0, 1, 2, 3, 8]));
        assert_eq!(parse("5,1"), Ok(vec![5, 1]));
        assert_eq!(format(&[0, 1, 2, 3, 8]), "0-3,8");
        for wrong in ["", "a", "1-", "3-1", "1,1", "0-2,1", "-1", "0-99999999999"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn shards_are_the_cpus_of_the_mask_unless_said() {
        let placed = place(&[2, 5, 6], None, None).unwrap();
        assert_eq!((placed.shards, placed.cpus), (3, vec![2, 5, 6]));
        assert_eq!(placed.warning, None);
        let placed = place(&[2, 5, 6], None, Some(vec![6, 2])).unwrap();
        assert_eq!((placed.shards, placed.cpus), (2, vec![6, 2]));
        let placed = place(&[2, 5, 6], Some(1), None).unwrap();
        assert_eq!((placed.shards, placed.warning), (1, None));
    }

    #[test]
    fn more_shards_than_cpus_share_them_with_a_warning() {
        let placed = place(&[0, 1], Some(3), None).unwrap();
        assert_eq!((placed.shards, placed.cpus), (3, vec![0, 1]));
        assert!(placed.warning.unwrap().starts_with("3 shards share 2 CPUs"));
    }

    #[test]
    fn a_machine_with_more_cpus_than_a_process_may_have_shards_gets_999() {
        let cpus: Vec<usize> = (0..1024).collect();
        let placed = place(&cpus, None, None).unwrap();
        assert_eq!((placed.shards, placed.warning), (999, None));
    }

    #[test]
    fn a_cpu_outside_the_mask_is_refused() {
        assert_eq!(
            place(&[0, 1], None, Some(vec![1, 4])).unwrap_err(),
            "shard.cpus names CPU 4, but this process may run on 0-1 only"
        );
    }

    #[test]
    fn this_process_runs_somewhere() {
        assert!(!of_process().unwrap().is_empty());
    }
}
