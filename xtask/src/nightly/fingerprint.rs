//! Which code a fuzz target exercises: a hash that changes when any of that code does.
//!
//! Counted are the target's own files, the crates of this repository that they name with all crates below these, and the
//! versions of all other packages below them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::command::{cargo, root};

/// Bytes of a hash that are shown.
const SHOWN: usize = 8;

/// What `cargo metadata` says of the fuzz targets' packages.
pub(super) struct Packages {
    metadata: Value,
}

/// A package and what it is made of.
struct Package<'a> {
    name: &'a str,
    version: &'a str,
    /// Where it is, if it is one of this repository.
    folder: Option<&'a Path>,
    /// Ids of those that it is built with.
    needs: BTreeSet<&'a str>,
}

impl Packages {
    pub(super) fn read(triple: &str) -> Result<Self> {
        let mut command = cargo(&["metadata", "--format-version", "1", "--locked"]);
        command.args(["--filter-platform", triple, "--manifest-path"]);
        command.arg(root().join("fuzz/Cargo.toml"));
        let output = command.output().context("cargo cannot be started")?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!("cargo metadata failed: {}", said.trim());
        }
        let metadata = serde_json::from_slice(&output.stdout)?;
        Ok(Self { metadata })
    }

    /// The hash of the code that a target exercises, as hexadecimal digits.
    pub(super) fn fingerprint(&self, target: &str) -> Result<String> {
        let fuzz = root().join("fuzz/fuzz_targets");
        let mut files = BTreeSet::new();
        add_source(&fuzz.join(format!("{target}.rs")), &mut files)?;
        let mut texts = Vec::new();
        for file in &files {
            texts.push(read(file)?);
        }
        let packages = self.packages()?;
        let is_named = |package: &Package<'_>| {
            let word = package.name.replace('-', "_");
            package.folder.is_some() && texts.iter().any(|text| has_word(text, &word))
        };
        let named = packages.iter().filter(|(_, package)| is_named(package));
        let roots = named.map(|(id, _)| *id).collect();
        let mut versions = Vec::new();
        for id in below(&packages, roots) {
            let package = &packages[id];
            match package.folder {
                Some(folder) => add_package(folder, &mut files)?,
                None => versions.push(format!("{} {}\n", package.name, package.version)),
            }
        }
        versions.sort();
        hash(&files, &versions)
    }

    fn packages(&self) -> Result<BTreeMap<&str, Package<'_>>> {
        let mut packages = BTreeMap::new();
        for package in array(&self.metadata["packages"]) {
            let folder = Path::new(text(&package["manifest_path"])?).parent();
            let is_ours = package["source"].is_null();
            let found = Package {
                name: text(&package["name"])?,
                version: text(&package["version"])?,
                folder: folder.filter(|_| is_ours),
                needs: BTreeSet::new(),
            };
            packages.insert(text(&package["id"])?, found);
        }
        for node in array(&self.metadata["resolve"]["nodes"]) {
            let id = text(&node["id"])?;
            for need in array(&node["deps"]) {
                let mut kinds = array(&need["dep_kinds"]).iter();
                let is_built_with = kinds.any(|kind| kind["kind"] != "dev");
                if let (true, Some(package)) = (is_built_with, packages.get_mut(id)) {
                    package.needs.insert(text(&need["pkg"])?);
                }
            }
        }
        Ok(packages)
    }
}

fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> Result<&str> {
    value
        .as_str()
        .context("cargo metadata answered in another form")
}

/// The packages, and all that they need.
fn below<'a>(
    packages: &BTreeMap<&'a str, Package<'a>>,
    mut left: Vec<&'a str>,
) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    while let Some(id) = left.pop() {
        if let (true, Some(package)) = (found.insert(id), packages.get(id)) {
            left.extend(&package.needs);
        }
    }
    found
}

/// A source file, and the files that a `#[path]` in it names.
fn add_source(file: &Path, found: &mut BTreeSet<PathBuf>) -> Result<()> {
    let file = file
        .canonicalize()
        .with_context(|| format!("{}", file.display()))?;
    if !found.insert(file.clone()) {
        return Ok(());
    }
    let folder = file.parent().context("a file has a folder")?;
    if file.ends_with("mod.rs") {
        add_folder(folder, found)?;
    }
    for part in read(&file)?.split("#[path = \"").skip(1) {
        let named = part.split('"').next().unwrap_or_default();
        add_source(&folder.join(named), found)?;
    }
    Ok(())
}

/// The files that a package is built of.
fn add_package(folder: &Path, found: &mut BTreeSet<PathBuf>) -> Result<()> {
    let files = ["Cargo.toml", "build.rs"].map(|name| folder.join(name));
    found.extend(files.into_iter().filter(|file| file.is_file()));
    add_folder(&folder.join("src"), found)
}

fn add_folder(folder: &Path, found: &mut BTreeSet<PathBuf>) -> Result<()> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("{}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        match path.is_dir() {
            true => add_folder(&path, found)?,
            false => drop(found.insert(path)),
        }
    }
    Ok(())
}

fn read(file: &Path) -> Result<String> {
    std::fs::read_to_string(file).with_context(|| format!("{} cannot be read", file.display()))
}

fn has_word(text: &str, word: &str) -> bool {
    let part_of_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut words = text.split(|c| !part_of_word(c));
    words.any(|other| other == word)
}

fn hash(files: &BTreeSet<PathBuf>, versions: &[String]) -> Result<String> {
    let mut hash = Sha256::new();
    for file in files {
        let name = file.strip_prefix(root()).unwrap_or(file);
        let bytes = std::fs::read(file).with_context(|| format!("{}", file.display()))?;
        hash.update(name.to_string_lossy().as_bytes());
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    }
    versions.iter().for_each(|version| hash.update(version));
    let digits = hash.finalize();
    Ok(digits[..SHOWN].iter().map(|b| format!("{b:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A package of this repository that needs another one and a published one.
    fn packages() -> Packages {
        let dep =
            |id: &str, kind: Value| serde_json::json!({"pkg": id, "dep_kinds": [{"kind": kind}]});
        let package = |name: &str, source: Value| {
            let manifest = root().join("crates").join(name.trim_start_matches("mica-"));
            serde_json::json!({"id": name, "name": name, "version": "1.0.0", "source": source,
                "manifest_path": manifest.join("Cargo.toml")})
        };
        let metadata = serde_json::json!({
            "packages": [package("mica-fatbin", Value::Null), package("mica-ptx", Value::Null),
                package("libc", "registry".into()), package("dev", "registry".into())],
            "resolve": {"nodes": [{"id": "mica-fatbin", "deps": [dep("libc", Value::Null), dep("dev", "dev".into())]}]},
        });
        Packages { metadata }
    }

    #[test]
    fn only_what_a_target_is_built_of_changes_its_hash() {
        let of = |packages: &Packages| packages.fingerprint("fatbin").unwrap();
        let first = of(&packages());
        assert_eq!((first.len(), of(&packages())), (16, first.clone()));
        let with_version = |at: usize| {
            let mut changed = packages();
            changed.metadata["packages"][at]["version"] = "2.0.0".into();
            of(&changed)
        };
        assert_ne!(with_version(2), first, "what it needs");
        assert_eq!(with_version(3), first, "what its tests need");
        assert_ne!(packages().fingerprint("ptx").unwrap(), first);
        assert!(packages().fingerprint("none").is_err());
    }

    #[test]
    fn files_that_a_target_names_by_path_are_its_own() {
        let mut files = BTreeSet::new();
        add_source(&root().join("fuzz/fuzz_targets/warps.rs"), &mut files).unwrap();
        let has = |end: &str| files.iter().any(|file| file.ends_with(end));
        assert!(has("fuzz_targets/warps.rs") && has("random/templates.rs"));
        assert!(has("tests/common/mod.rs") && !has("random/main.rs"));
    }
}
