//! Several texts of PTX become one.
//!
//! The joined text has one header: the highest version and target of all texts. A declaration of
//! something that another text defines is left out; something that no text defines is an error. Of
//! several definitions the strong one stands, else the largest common or the first weak one.
//!
//! ```text
//! header | .file | declarations | variables | functions | aliases
//! ```

mod rename;

use std::collections::{HashMap, HashSet};

use crate::ast::{Linkage, Space, Target};
use crate::error::{Error, Result};
use crate::outline::{Declaration, DeclarationKind, Outline, outline};
use crate::plain::plain_text;
use rename::{Renames, private_names};

/// One text with what it declares.
struct Source {
    text: String,
    outline: Outline,
    renames: Renames,
}

/// One text of several. `is_provided` says which functions the device brings itself.
///
/// # Errors
///
/// When a text cannot be outlined, or when no text defines a name that one declares.
///
/// ```
/// let head = ".version 8.0\n.target sm_80\n.address_size 64\n";
/// let user = format!("{head}.extern .func f();\n.visible .entry k() {{ call f; ret; }}");
/// let library = format!("{head}.visible .func f() {{ ret; }}");
/// let joined = mica_ptx::join(&[user, library], &|_| false).unwrap();
/// assert_eq!(mica_ptx::parse(joined.as_bytes()).unwrap().kernels().count(), 1);
/// ```
pub fn join(texts: &[String], is_provided: &dyn Fn(&str) -> bool) -> Result<String> {
    let mut sources = Vec::with_capacity(texts.len());
    for text in texts {
        let text = plain_text(text.as_bytes())?;
        let outline = outline(text.as_bytes())?;
        sources.push((text, outline));
    }
    let renames = private_names(sources.iter().map(|(_, outline)| outline));
    let sources = sources.into_iter().zip(renames);
    let sources: Vec<Source> = sources
        .map(|((text, outline), renames)| Source {
            text,
            outline,
            renames,
        })
        .collect();
    let mut joined = Joined::default();
    let standing = standing(&sources);
    for source in &sources {
        for declared in &source.outline.declarations {
            joined.add(source, declared, &standing, is_provided)?;
        }
    }
    Ok(header(&sources)? + &joined.text())
}

/// The version and target that all texts can have.
fn header(sources: &[Source]) -> Result<String> {
    let outlines = || sources.iter().map(|source| &source.outline);
    let version = outlines().map(|outline| outline.version).max();
    let target = outlines()
        .map(|outline| &outline.target)
        .max_by_key(|target| (target.sm, target.suffix.is_some()));
    let (Some((major, minor)), Some(Target { sm, suffix, .. })) = (version, target) else {
        return Err(no_target());
    };
    if *sm == 0 {
        return Err(no_target());
    }
    let suffix = suffix.map(String::from).unwrap_or_default();
    let independent = outlines().any(|outline| outline.target.texmode_independent);
    let texmode = if independent {
        ", texmode_independent"
    } else {
        ""
    };
    Ok(format!(
        ".version {major}.{minor}\n.target sm_{sm}{suffix}{texmode}\n.address_size 64\n"
    ))
}

fn no_target() -> Error {
    Error::Undefined {
        name: ".target".into(),
    }
}

/// Which of several definitions of a name stands: the greatest, and the first of equals.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Strength {
    Weak,
    /// By its bytes.
    Common(u64),
    Strong,
}

impl Strength {
    fn of(declared: &Declaration) -> Self {
        match (declared.linkage, declared.kind) {
            (Linkage::Weak, _) => Self::Weak,
            (Linkage::Common, DeclarationKind::Variable { bytes, .. }) => Self::Common(bytes),
            _ => Self::Strong,
        }
    }
}

/// The definition of each name that stands.
type Standing<'a> = HashMap<&'a str, &'a Declaration>;

fn standing(sources: &[Source]) -> Standing<'_> {
    let mut all = Standing::new();
    for source in sources {
        for declared in &source.outline.declarations {
            if !declared.is_definition() {
                continue;
            }
            let stands = all
                .entry(source.renames.name(&declared.name))
                .or_insert(declared);
            if Strength::of(declared) > Strength::of(stands) {
                *stands = declared;
            }
        }
    }
    all
}

/// The parts of the joined text, in the order in which they will stand.
#[derive(Default)]
struct Joined {
    files: String,
    declarations: String,
    variables: String,
    functions: String,
    aliases: String,
    declared: HashSet<String>,
}

impl Joined {
    fn text(self) -> String {
        self.files + &self.declarations + &self.variables + &self.functions + &self.aliases
    }

    fn add(
        &mut self,
        source: &Source,
        declared: &Declaration,
        standing: &Standing<'_>,
        is_provided: &dyn Fn(&str) -> bool,
    ) -> Result<()> {
        if declared.is_definition() {
            self.define(source, declared, standing);
            return Ok(());
        }
        match declared.kind {
            DeclarationKind::File => self.files += &source.whole(declared),
            DeclarationKind::Other => self.variables += &source.whole(declared),
            _ => return self.declare(source, declared, standing, is_provided),
        }
        Ok(())
    }

    fn define(&mut self, source: &Source, declared: &Declaration, standing: &Standing<'_>) {
        let name = source.renames.name(&declared.name);
        let is_standing = standing
            .get(name)
            .is_some_and(|stands| std::ptr::eq(*stands, declared));
        let is_function = matches!(declared.kind, DeclarationKind::Function { .. });
        // A second strong definition is an error, which is reported when the text is loaded.
        if !is_standing && Strength::of(declared) < Strength::Strong {
            // Its own text may call the function before the definition that stands.
            if is_function && self.declared.insert(name.to_owned()) {
                self.declarations += &source.declaration(declared, Linkage::Visible);
            }
            return;
        }
        // Variables come before all code, which may be of another text, and aliases after it.
        let part = match declared.kind {
            DeclarationKind::Function { .. } => &mut self.functions,
            DeclarationKind::Alias => &mut self.aliases,
            _ => &mut self.variables,
        };
        *part += &source.whole(declared);
    }

    fn declare(
        &mut self,
        source: &Source,
        declared: &Declaration,
        standing: &Standing<'_>,
        is_provided: &dyn Fn(&str) -> bool,
    ) -> Result<()> {
        let name = source.renames.name(&declared.name);
        if !self.declared.insert(name.to_owned()) {
            return Ok(());
        }
        let is_function = matches!(declared.kind, DeclarationKind::Function { .. });
        if standing.contains_key(name) {
            // Calls may come before the definition; it is declared as what it is defined as.
            if is_function {
                let linkage = match declared.linkage {
                    Linkage::Extern => Linkage::Visible,
                    linkage => linkage,
                };
                self.declarations += &source.declaration(declared, linkage);
            }
            return Ok(());
        }
        let is_dynamic_shared = matches!(
            declared.kind,
            DeclarationKind::Variable {
                space: Space::Shared,
                ..
            }
        );
        let must_exist = declared.linkage == Linkage::Extern && !is_dynamic_shared;
        if must_exist && !is_provided(name) {
            return Err(Error::Undefined { name: name.into() });
        }
        self.declarations += &source.declaration(declared, declared.linkage);
        Ok(())
    }
}

impl Source {
    /// A declaration as it stands in the text.
    fn whole(&self, declared: &Declaration) -> String {
        let is_variable = matches!(declared.kind, DeclarationKind::Variable { .. });
        format!(
            "{} {} {}{}\n",
            declared.linkage.directive(),
            self.renames.applied(&self.text[declared.head.clone()]),
            self.renames.applied(&self.text[declared.rest.clone()]),
            if is_variable { ";" } else { "" },
        )
    }

    /// A declaration without a body, of another linkage.
    fn declaration(&self, declared: &Declaration, linkage: Linkage) -> String {
        let rest = match declared.kind {
            DeclarationKind::Variable { .. } => &self.text[declared.rest.clone()],
            _ => "",
        };
        format!(
            "{} {} {};\n",
            linkage.directive(),
            self.renames.applied(&self.text[declared.head.clone()]),
            self.renames.applied(rest),
        )
    }
}

#[cfg(test)]
mod tests;
