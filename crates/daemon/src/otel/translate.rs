//! The metrics' text as OpenTelemetry has it: an `ExportMetricsServiceRequest` in JSON.
//!
//! Reads the daemon's own OpenMetrics text, so both ways out have the same metrics, whatever is added to them.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// When the figures were read, and since when counters count, in nanoseconds since the epoch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    pub(super) started_ns: u64,
    pub(super) now_ns: u64,
}

/// Who exports.
#[derive(Clone, Debug)]
pub(super) struct Resource {
    pub(super) host: String,
    pub(super) version: &'static str,
}

/// Labels and their values.
type Labels<'a> = Vec<(&'a str, String)>;

/// All samples with one name in the text.
#[derive(Debug, Default)]
struct Family<'a> {
    kind: &'a str,
    unit: &'a str,
    help: &'a str,
    samples: Vec<Sample<'a>>,
}

#[derive(Debug)]
struct Sample<'a> {
    /// What follows the family's name: `_total`, `_bucket`, `_sum`, `_count` or nothing.
    suffix: &'a str,
    labels: Labels<'a>,
    value: &'a str,
}

/// Translates a page of OpenMetrics text.
pub(super) fn translate(page: &str, resource: &Resource, times: Times) -> Value {
    let mut order: Vec<&str> = Vec::new();
    let mut families: BTreeMap<&str, Family<'_>> = BTreeMap::new();
    for line in page.lines() {
        if let Some(described) = line.strip_prefix("# ") {
            let mut words = described.splitn(3, ' ');
            if let (Some(what), Some(name), Some(rest)) = (words.next(), words.next(), words.next())
            {
                let family = families.entry(name).or_insert_with(|| {
                    order.push(name);
                    Family::default()
                });
                match what {
                    "TYPE" => family.kind = rest,
                    "UNIT" => family.unit = rest,
                    "HELP" => family.help = rest,
                    _ => {}
                }
            }
        } else if let Some((name, labels, value)) = sample(line)
            && let Some(base) = family_of(name, &families)
            && let Some(family) = families.get_mut(base)
        {
            family.samples.push(Sample {
                suffix: &name[base.len()..],
                labels,
                value,
            });
        }
    }
    let metrics: Vec<Value> = (order.iter())
        .filter_map(|name| metric(name, families.get(name)?, times))
        .collect();
    let text = |key: &str, value: &str| json!({"key": key, "value": {"stringValue": value}});
    json!({"resourceMetrics": [{
        "resource": {"attributes": [
            text("service.name", "mica"),
            text("service.version", resource.version),
            text("host.name", &resource.host),
        ]},
        "scopeMetrics": [{
            "scope": {"name": "mica", "version": resource.version},
            "metrics": metrics,
        }],
    }]})
}

/// The longest described name that a sample's name begins with.
fn family_of<'a>(name: &str, families: &BTreeMap<&'a str, Family<'_>>) -> Option<&'a str> {
    let suffixes = ["", "_total", "_bucket", "_sum", "_count"];
    suffixes.iter().find_map(|suffix| {
        let base = name.strip_suffix(suffix)?;
        families.get_key_value(base).map(|(known, _)| *known)
    })
}

/// Takes `name{label="value",...} number` apart.
fn sample(line: &str) -> Option<(&str, Labels<'_>, &str)> {
    let Some((name, rest)) = line.split_once('{') else {
        let (name, value) = line.split_once(' ')?;
        return Some((name, Vec::new(), value));
    };
    let (mut labels, mut rest) = (Vec::new(), rest);
    loop {
        if let Some(value) = rest.strip_prefix("} ") {
            return Some((name, labels, value));
        }
        let (key, quoted) = rest.trim_start_matches(',').split_once("=\"")?;
        let (value, after) = unquote(quoted)?;
        labels.push((key, value));
        rest = after;
    }
}

/// A label's value up to its closing quote, and what follows.
fn unquote(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => match chars.next()?.1 {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            c => value.push(c),
        }
    }
    None
}

fn metric(name: &str, family: &Family<'_>, times: Times) -> Option<Value> {
    let unit = match family.unit {
        "bytes" => "By",
        "seconds" => "s",
        "ratio" => "1",
        other => other,
    };
    let mut metric = json!({"name": name, "description": family.help, "unit": unit});
    let (key, data) = match family.kind {
        "counter" => {
            let points = points(family, "_total", times);
            let cumulative =
                json!({"aggregationTemporality": 2, "isMonotonic": true, "dataPoints": points});
            ("sum", cumulative)
        }
        "histogram" => {
            let points = histogram_points(family, times);
            let cumulative = json!({"aggregationTemporality": 2, "dataPoints": points});
            ("histogram", cumulative)
        }
        "gauge" | "unknown" | "info" => ("gauge", json!({"dataPoints": points(family, "", times)})),
        _ => return None,
    };
    metric[key] = data;
    Some(metric)
}

fn attributes(labels: &[(&str, String)]) -> Value {
    let one = |(key, value): &(&str, String)| json!({"key": key, "value": {"stringValue": value}});
    labels.iter().map(one).collect()
}

fn points(family: &Family<'_>, suffix: &str, times: Times) -> Vec<Value> {
    let own = family.samples.iter().filter(|s| s.suffix == suffix);
    own.filter_map(|sample| {
        let mut point = json!({
            "attributes": attributes(&sample.labels),
            "startTimeUnixNano": times.started_ns.to_string(),
            "timeUnixNano": times.now_ns.to_string(),
        });
        // Whole numbers are strings in this JSON: they have 64 bits.
        match sample.value.parse::<i64>() {
            Ok(whole) => point["asInt"] = whole.to_string().into(),
            Err(_) => point["asDouble"] = sample.value.parse::<f64>().ok()?.into(),
        }
        Some(point)
    })
    .collect()
}

fn histogram_points(family: &Family<'_>, times: Times) -> Vec<Value> {
    let of = |suffix: &'static str| family.samples.iter().filter(move |s| s.suffix == suffix);
    let without_bound = |sample: &Sample<'_>| -> Vec<(String, String)> {
        let others = sample.labels.iter().filter(|(key, _)| *key != "le");
        others
            .map(|(key, value)| ((*key).to_owned(), value.clone()))
            .collect()
    };
    let number = |sample: &Sample<'_>| sample.value.parse::<f64>().unwrap_or(0.0);
    of("_count")
        .map(|count| {
            let labels = without_bound(count);
            let same = |sample: &&Sample<'_>| without_bound(sample) == labels;
            let sum = of("_sum").find(same).map_or(0.0, number);
            let (mut bounds, mut counts, mut before) = (Vec::new(), Vec::new(), 0);
            for bucket in of("_bucket").filter(same) {
                let bound = bucket.labels.iter().find(|(key, _)| *key == "le");
                let upper = bound.and_then(|(_, text)| text.parse::<f64>().ok());
                // The text counts all up to a bound, this format those between two bounds.
                let all = number(bucket) as u64;
                counts.push((all - before.min(all)).to_string());
                before = all;
                bounds.extend(upper.filter(|upper| upper.is_finite()));
            }
            json!({
                "attributes": attributes(&count.labels),
                "startTimeUnixNano": times.started_ns.to_string(),
                "timeUnixNano": times.now_ns.to_string(),
                "count": (number(count) as u64).to_string(),
                "sum": sum,
                "bucketCounts": counts,
                "explicitBounds": bounds,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# HELP a_used_bytes Memory in use.\n# TYPE a_used_bytes gauge\n# UNIT a_used_bytes bytes\n\
        a_used_bytes{vgpu=\"x\\\"},{\\\\\\n\",user=\"0\"} 9223372036854775807\n\
        # HELP a_gpu_seconds GPU time.\n# TYPE a_gpu_seconds counter\n# UNIT a_gpu_seconds seconds\n\
        a_gpu_seconds_total{vgpu=\"x\"} 1.5\na_gpu_seconds_total{vgpu=\"y\"} 2\n\
        # HELP w_seconds Waits.\n# TYPE w_seconds histogram\n# UNIT w_seconds seconds\n\
        w_seconds_sum{vgpu=\"x\"} 2.25\nw_seconds_count{vgpu=\"x\"} 3\n\
        w_seconds_bucket{le=\"0.1\",vgpu=\"x\"} 1\nw_seconds_bucket{le=\"0.5\",vgpu=\"x\"} 2\n\
        w_seconds_bucket{le=\"+Inf\",vgpu=\"x\"} 3\n# HELP up Up.\n# TYPE up gauge\nup 1\n# EOF\n";

    fn translated() -> Value {
        let resource = Resource {
            host: "h".into(),
            version: "1",
        };
        let times = Times {
            started_ns: 5,
            now_ns: 7,
        };
        translate(PAGE, &resource, times)["resourceMetrics"][0].take()
    }

    #[test]
    fn every_metric_comes_with_its_kind_unit_and_labels() {
        let all = translated();
        let metrics = all["scopeMetrics"][0]["metrics"].as_array().unwrap();
        let names: Vec<_> = metrics
            .iter()
            .map(|m| m["name"].as_str().unwrap())
            .collect();
        assert_eq!(names, ["a_used_bytes", "a_gpu_seconds", "w_seconds", "up"]);
        let gauge = &metrics[0]["gauge"]["dataPoints"][0];
        assert_eq!(gauge["asInt"], "9223372036854775807");
        assert_eq!(gauge["attributes"][0]["value"]["stringValue"], "x\"},{\\\n");
        assert_eq!(
            (&metrics[0]["unit"], &gauge["timeUnixNano"]),
            (&"By".into(), &"7".into())
        );
        let sum = &metrics[1]["sum"];
        assert_eq!(
            (&sum["isMonotonic"], &sum["aggregationTemporality"]),
            (&true.into(), &2.into())
        );
        assert_eq!(sum["dataPoints"][0]["asDouble"], 1.5);
        assert_eq!(sum["dataPoints"][1]["startTimeUnixNano"], "5");
        assert_eq!(metrics[3]["gauge"]["dataPoints"][0]["asInt"], "1");
    }

    #[test]
    fn buckets_count_between_their_bounds() {
        let all = translated();
        let point = &all["scopeMetrics"][0]["metrics"][2]["histogram"]["dataPoints"][0];
        assert_eq!(point["bucketCounts"], json!(["1", "1", "1"]));
        assert_eq!(point["explicitBounds"], json!([0.1, 0.5]));
        assert_eq!(
            (&point["count"], &point["sum"]),
            (&"3".into(), &2.25.into())
        );
        assert_eq!(point["attributes"].as_array().unwrap().len(), 1);
    }

    #[test]
    fn lines_that_are_cut_off_are_left_out() {
        for line in ["a{b=\"c", "a{b", "a{b=\"c\"}", "", "a"] {
            assert!(sample(line).is_none(), "{line}");
        }
    }
}
