//! The licences of what Mica is built from.
//!
//! `check` compares every package that the workspace can use with `deny.toml`; `texts` collects what must be shipped with
//! the program. Both read `cargo metadata` and the packages' own files, and need no network.

mod expression;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::command::{cargo, root};

/// What the shipped program consists of.
const SHIPPED: [&str; 3] = ["mica-cli", "mica-shim", "mica-nvml-shim"];

/// A package of this workspace or one that it depends on.
struct Package {
    id: String,
    name: String,
    version: String,
    licence: String,
    /// `None` for the workspace's own.
    source: Option<String>,
    folder: PathBuf,
}

impl Package {
    fn read(value: &Value) -> Result<Self> {
        let text = |key: &str| value[key].as_str().map(str::to_owned);
        let name = text("name").context("a package has no name")?;
        let of = |key: &str| text(key).with_context(|| format!("{name} has no {key}"));
        let manifest = PathBuf::from(of("manifest_path")?);
        Ok(Self {
            id: of("id")?,
            version: of("version")?,
            licence: of("license")?,
            source: text("source"),
            folder: manifest.parent().unwrap_or(Path::new("/")).to_owned(),
            name,
        })
    }
}

fn metadata() -> Result<Value> {
    let mut command = cargo(&["metadata", "--locked", "--format-version", "1"]);
    command.args(["--filter-platform", "x86_64-unknown-linux-gnu"]);
    let output = command.output().context("cargo metadata cannot start")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("cargo metadata failed: {said}");
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn packages(metadata: &Value) -> Result<Vec<Package>> {
    let all = metadata["packages"].as_array();
    let all = all.context("cargo metadata lists no packages")?;
    all.iter().map(Package::read).collect()
}

/// Fails when a package has a licence or a source that `deny.toml` does not allow.
pub(crate) fn check() -> Result<()> {
    let rules = std::fs::read_to_string(root().join("deny.toml"))?;
    let wrong = violations(&rules, &packages(&metadata()?)?)?;
    if !wrong.is_empty() {
        bail!("deny.toml does not allow:\n  {}", wrong.join("\n  "));
    }
    Ok(())
}

fn violations(rules: &str, packages: &[Package]) -> Result<Vec<String>> {
    let rules: toml::Table = toml::from_str(rules)?;
    let allowed = rules.get("licenses").and_then(|l| l.get("allow"));
    let allowed = allowed.and_then(|list| list.as_array());
    let allowed = allowed.context("deny.toml has no licenses.allow")?;
    let allows = |name: &str| allowed.iter().any(|entry| entry.as_str() == Some(name));
    let mut wrong = Vec::new();
    for package in packages {
        let named = format!("{} {}", package.name, package.version);
        if !expression::satisfied(&package.licence, &allows)? {
            wrong.push(format!("{named}: licence {}", package.licence));
        }
        let from = package.source.as_deref().unwrap_or("registry+");
        if !from.starts_with("registry+") {
            wrong.push(format!("{named}: from {from}"));
        }
    }
    Ok(wrong)
}

/// One text with every package in the shipped program and its licence.
pub(crate) fn texts() -> Result<String> {
    let metadata = metadata()?;
    let packages = packages(&metadata)?;
    let linked = linked(&metadata, &packages);
    let mut shipped: Vec<&Package> = packages
        .iter()
        .filter(|package| package.source.is_some() && linked.contains(&package.id))
        .collect();
    shipped.sort_by_key(|package| (&package.name, &package.version));
    // Many packages have the same text: each is printed once, with the names of those packages.
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut out = String::from("mica contains these packages, under these licences:\n\n");
    for package in &shipped {
        let named = format!("{} {}", package.name, package.version);
        out += &format!("  {named:<48} {}\n", package.licence);
        for text in texts_of(package, &shipped)? {
            texts.entry(text).or_default().push(named.clone());
        }
    }
    let mut texts: Vec<_> = texts.into_iter().map(|(text, of)| (of, text)).collect();
    texts.sort();
    for (of, text) in texts {
        out += &format!("\n{}\n{}:\n\n{text}\n", "-".repeat(80), of.join(", "));
    }
    Ok(out)
}

/// The packages that normal dependencies lead to.
fn linked(metadata: &Value, packages: &[Package]) -> BTreeSet<String> {
    let nodes = metadata["resolve"]["nodes"].as_array();
    let nodes: BTreeMap<&str, &Value> = nodes
        .into_iter()
        .flatten()
        .filter_map(|node| Some((node["id"].as_str()?, node)))
        .collect();
    let roots = packages.iter().filter(|p| SHIPPED.contains(&&*p.name));
    let mut open: Vec<String> = roots.map(|package| package.id.clone()).collect();
    let mut seen = BTreeSet::new();
    while let Some(id) = open.pop() {
        let node = nodes.get(id.as_str());
        let dependencies = node.and_then(|node| node["deps"].as_array());
        for dependency in dependencies.into_iter().flatten() {
            let kinds = dependency["dep_kinds"].as_array();
            let is_normal = kinds
                .into_iter()
                .flatten()
                .any(|kind| kind["kind"].is_null());
            if let (true, Some(id)) = (is_normal, dependency["pkg"].as_str()) {
                open.extend((!seen.contains(id)).then(|| id.to_owned()));
            }
        }
        seen.insert(id);
    }
    seen
}

/// The licence files of a package, or of one with the very same licence: some packages of a family have none of their own.
fn texts_of(package: &Package, all: &[&Package]) -> Result<Vec<String>> {
    let own = licence_files(&package.folder)?;
    if !own.is_empty() {
        return Ok(own);
    }
    for other in all.iter().filter(|o| o.licence == package.licence) {
        let files = licence_files(&other.folder)?;
        if !files.is_empty() {
            return Ok(files);
        }
    }
    bail!(
        "{} {} has no licence file, nor has another package under {}",
        package.name,
        package.version,
        package.licence
    )
}

fn licence_files(folder: &Path) -> Result<Vec<String>> {
    let starts = ["LICEN", "COPYING", "COPYRIGHT", "NOTICE", "UNLICEN"];
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let name = name.to_uppercase();
        if path.is_file() && starts.iter().any(|start| name.starts_with(start)) {
            files.push(path);
        }
    }
    files.sort();
    let text = |path: PathBuf| {
        let text = std::fs::read(&path).with_context(|| format!("{}", path.display()))?;
        Ok(String::from_utf8_lossy(&text).trim_end().to_owned())
    };
    files.into_iter().map(text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_dependency_is_allowed() {
        check().unwrap();
    }

    #[test]
    fn other_licences_and_sources_are_named() {
        let package = |name: &str, licence: &str, source: Option<&str>| Package {
            id: String::new(),
            name: name.into(),
            version: "1.0.0".into(),
            licence: licence.into(),
            source: source.map(str::to_owned),
            folder: PathBuf::new(),
        };
        let rules = "[licenses]\nallow = [\"MIT\"]\n";
        let packages = [
            package("own", "MIT", None),
            package("good", "GPL-3.0 OR MIT", Some("registry+a")),
            package("copyleft", "GPL-3.0", Some("registry+a")),
            package("branch", "MIT", Some("git+b")),
        ];
        let wrong = violations(rules, &packages).unwrap();
        assert_eq!(
            wrong,
            [
                "copyleft 1.0.0: licence GPL-3.0",
                "branch 1.0.0: from git+b"
            ]
        );
        assert!(violations("", &packages).is_err());
    }

    #[test]
    fn the_text_names_what_is_linked_and_not_what_only_tests_use() {
        let text = texts().unwrap();
        let lists = |name: &str| text.lines().any(|l| l.starts_with(&format!("  {name} ")));
        assert!(lists("cranelift-codegen") && lists("libc"), "{text}");
        // A dependency of tests alone.
        assert!(!lists("proptest"));
        assert!(text.contains("LLVM Exceptions to the Apache 2.0 License"));
    }
}
