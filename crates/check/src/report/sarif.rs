//! Findings for other tools: SARIF 2.1.0, which code hosts show beside the lines.

use serde_json::{Value, json};

use crate::finding::{Finding, Party, Severity};

/// The address of the format's schema, which its files name.
const SCHEMA: &str = "https://json.schemastore.org/sarif-2.1.0.json";

/// A SARIF log of one run.
pub fn sarif(findings: &[Finding], version: &str) -> Value {
    let mut ids: Vec<String> = findings.iter().map(rule_id).collect();
    ids.sort();
    ids.dedup();
    let rules: Vec<Value> = ids
        .iter()
        .map(|id| {
            let message = findings.iter().find(|f| rule_id(f) == *id);
            let message = message.map_or("", |f| f.message.as_str());
            json!({ "id": id, "shortDescription": { "text": message } })
        })
        .collect();
    let results: Vec<Value> = findings.iter().map(|f| result(f, &ids)).collect();
    json!({
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [{
            "tool": { "driver": { "name": "mica check", "version": version, "rules": rules } },
            "results": results,
        }],
    })
}

fn rule_id(finding: &Finding) -> String {
    format!("{}/{}", finding.tool.name(), finding.kind)
}

fn result(finding: &Finding, ids: &[String]) -> Value {
    let id = rule_id(finding);
    let level = match finding.severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
        Severity::Note => "note",
    };
    let mut result = json!({
        "ruleId": id,
        "ruleIndex": ids.iter().position(|other| *other == id),
        "level": level,
        "message": { "text": message(finding) },
        "occurrenceCount": finding.count,
    });
    let mut places = finding.parties.iter().filter_map(location);
    if let Some(first) = places.next() {
        result["locations"] = json!([first]);
    }
    let others: Vec<Value> = places.collect();
    if !others.is_empty() {
        result["relatedLocations"] = Value::Array(others);
    }
    result
}

fn message(finding: &Finding) -> String {
    // The first line of the text ends with the class, which is the rule's name here.
    let text = super::text::text(finding);
    let rest: Vec<&str> = text.lines().skip(1).map(str::trim).collect();
    match rest[..] {
        [] => finding.message.clone(),
        _ => format!("{}: {}", finding.message, rest.join("; ")),
    }
}

fn location(party: &Party) -> Option<Value> {
    let file = party.place.file.as_ref()?;
    let [x, y, z] = party.thread;
    let [bx, by, bz] = party.block;
    let text = format!(
        "{} by thread ({x},{y},{z}) of block ({bx},{by},{bz})",
        party.access
    );
    Some(json!({
        "physicalLocation": {
            "artifactLocation": { "uri": uri(file) },
            "region": { "startLine": party.place.line.max(1) },
        },
        "message": { "text": text },
    }))
}

/// A path as a reference: absolute paths as `file:`, relative ones as they are; what has a meaning in references is escaped.
fn uri(path: &str) -> String {
    let mut out = String::from(if path.starts_with('/') { "file://" } else { "" });
    for byte in path.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'_' | b'-' | b'~' | b'+' => {
                out.push(char::from(byte));
            }
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::{Place, Tool};

    #[test]
    fn what_the_format_requires_is_there() {
        let party = |file: Option<&str>, line| Party {
            access: "write".into(),
            bytes: 4,
            block: [0; 3],
            thread: [1, 0, 0],
            place: Place {
                file: file.map(str::to_owned),
                line,
                ptx_line: 9,
            },
        };
        let finding = Finding {
            tool: Tool::Racecheck,
            kind: "write-after-read".into(),
            severity: Severity::Error,
            message: "race".into(),
            kernel: "k()".into(),
            space: "shared".into(),
            address: Some(4),
            parties: vec![party(Some("/a b/k.cu"), 3), party(Some("k.cu"), 0)],
            allocation: None,
            count: 2,
        };
        let mut without_line = finding.clone();
        without_line.kind = "write-after-write".into();
        without_line.parties = vec![party(None, 0)];
        let log = sarif(&[finding, without_line], "0.1.0");
        assert_eq!(log["version"], "2.1.0");
        let run = &log["runs"][0];
        assert!(run["tool"]["driver"]["name"].is_string());
        let rules = run["tool"]["driver"]["rules"].as_array().unwrap();
        let results = run["results"].as_array().unwrap();
        assert_eq!((rules.len(), results.len()), (2, 2));
        for result in results {
            let index = result["ruleIndex"].as_u64().unwrap() as usize;
            assert_eq!(rules[index]["id"], result["ruleId"]);
            assert!(["error", "warning", "note"].contains(&result["level"].as_str().unwrap()));
            assert!(!result["message"]["text"].as_str().unwrap().is_empty());
        }
        let place = &results[0]["locations"][0]["physicalLocation"];
        assert_eq!(place["artifactLocation"]["uri"], "file:///a%20b/k.cu");
        assert_eq!(place["region"]["startLine"], 3);
        let other = &results[0]["relatedLocations"][0]["physicalLocation"];
        assert_eq!(other["region"]["startLine"], 1, "lines begin at 1");
        assert!(results[1].get("locations").is_none());
    }
}
