//! The two formats of metrics.

use std::collections::HashSet;

/// How metrics are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// The older format of Prometheus, which node_exporter's textfile collector and promtool read.
    Prometheus,
}

impl Format {
    /// What a client that sends this `Accept` understands best.
    pub(crate) fn accepted(accept: &str) -> Self {
        match accept.contains("application/openmetrics-text") {
            true => Self::OpenMetrics,
            false => Self::Prometheus,
        }
    }

    /// As HTTP names it.
    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// OpenMetrics names a counter without `_total` where it is described; the older format has one name everywhere, no units
/// and no end.
pub(super) fn in_older_format(page: &str) -> String {
    let mut older = String::with_capacity(page.len());
    let counters: HashSet<&str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter"))
        .collect();
    for line in page.lines() {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some("UNIT"), ..) => continue,
            (Some("#"), Some("EOF"), ..) => continue,
            (Some("#"), Some(kind), Some(name), Some(rest)) if counters.contains(name) => {
                older.push_str(&format!("# {kind} {name}_total {rest}\n"));
            }
            _ => {
                older.push_str(line);
                older.push('\n');
            }
        }
    }
    older
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_older_format_has_one_name_for_a_counter_and_no_end() {
        let open = "# HELP a_seconds Time.\n# TYPE a_seconds counter\n# UNIT a_seconds seconds\n\
            a_seconds_total{b=\"c d\"} 1\n# HELP g Text with words.\n# TYPE g gauge\ng 2\n# EOF\n";
        let older = "# HELP a_seconds_total Time.\n# TYPE a_seconds_total counter\n\
            a_seconds_total{b=\"c d\"} 1\n# HELP g Text with words.\n# TYPE g gauge\ng 2\n";
        assert_eq!(in_older_format(open), older);
    }

    #[test]
    fn a_client_gets_what_it_accepts() {
        let prometheus =
            "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5";
        assert_eq!(Format::accepted(prometheus), Format::OpenMetrics);
        assert_eq!(Format::accepted("*/*"), Format::Prometheus);
    }
}
