//! Finds circular dependencies between the files of a crate, by the paths in its code.
//!
//! An edge goes from the file that uses an item to the file that defines it. Re-exports (`pub use`) are
//! followed and do not count as uses. Tests and `mod` declarations are ignored.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet, HashMap},
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use syn::{
    Attribute, Expr, Item, ItemMod, ItemUse, Macro, Meta, Token, UseTree, Visibility,
    punctuated::Punctuated,
    visit::{self, Visit},
};

/// Returns the cycles among the files of a crate, one line each, with the items that cause them. `root` is
/// the file of the root module.
pub(crate) fn of_crate(root: &Path) -> Result<Vec<String>> {
    let mut modules = Modules::default();
    let folder = root.parent().unwrap_or_else(|| Path::new(""));
    modules.read_file(root, folder, None)?;
    Ok(circles(&modules.arrows()))
}

/// Returns the uses of the crate's module `to` by its module `from`, one line for each pair of files.
pub(crate) fn uses(root: &Path, from: &str, to: &str) -> Result<Vec<String>> {
    let mut modules = Modules::default();
    let folder = root.parent().unwrap_or_else(|| Path::new(""));
    modules.read_file(root, folder, None)?;
    let is_of = |file: &Path, module: &str| {
        file.starts_with(folder.join(module)) || file == folder.join(format!("{module}.rs"))
    };
    let mut found = Vec::new();
    for (file, others) in modules.arrows() {
        let others = others
            .iter()
            .filter(|(other, _)| is_of(&file, from) && is_of(other, to));
        found.extend(others.map(|(other, names)| takes(&file, names, other)));
    }
    Ok(found)
}

/// Formats a line about a file that uses items from another file.
fn takes(from: &Path, names: &BTreeSet<String>, to: &Path) -> String {
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    format!(
        "{} takes {} from {}",
        from.display(),
        names.join(", "),
        to.display()
    )
}

/// The items that files use from other files: for each using file, the defining files with their items.
type Arrows = BTreeMap<PathBuf, BTreeMap<PathBuf, BTreeSet<String>>>;

fn circles(arrows: &Arrows) -> Vec<String> {
    let reachable = |from: &Path| {
        let mut seen = BTreeSet::new();
        let mut open = vec![from];
        while let Some(file) = open.pop() {
            for next in arrows.get(file).into_iter().flat_map(BTreeMap::keys) {
                if seen.insert(next.as_path()) {
                    open.push(next);
                }
            }
        }
        seen
    };
    let reached: BTreeMap<&Path, BTreeSet<&Path>> = arrows
        .keys()
        .map(|file| (file.as_path(), reachable(file)))
        .collect();
    let mut told: BTreeSet<&Path> = BTreeSet::new();
    let mut found = Vec::new();
    for (file, others) in &reached {
        if !others.contains(file) || told.contains(file) {
            continue;
        }
        let circle: BTreeSet<&Path> = others
            .iter()
            .copied()
            .filter(|other| reached.get(other).is_some_and(|back| back.contains(file)))
            .collect();
        told.extend(&circle);
        let mut ties = Vec::new();
        for from in &circle {
            for (to, names) in arrows.get(*from).into_iter().flatten() {
                if circle.contains(to.as_path()) {
                    ties.push(takes(from, names, to));
                }
            }
        }
        found.push(ties.join("; "));
    }
    found
}

/// Modules of a crate, the root first.
#[derive(Default)]
struct Modules {
    all: Vec<Module>,
    /// Cache of resolved names; `None` while a name is being resolved, so that cyclic imports end.
    found: RefCell<HashMap<(usize, String), Option<Target>>>,
}

/// A module, in its own file or inline.
#[derive(Default)]
struct Module {
    file: PathBuf,
    parent: Option<usize>,
    children: BTreeMap<String, usize>,
    /// Names of items defined in the module.
    items: BTreeSet<String>,
    /// Imported names with their paths.
    imports: BTreeMap<String, Vec<String>>,
    /// Paths of glob imports.
    globs: Vec<Vec<String>>,
    /// Paths used in code, including private imports.
    paths: Vec<Vec<String>>,
}

/// The item that a path refers to.
#[derive(Clone, Copy)]
enum Target {
    Module(usize),
    /// An item defined in the module.
    Item(usize),
}

impl Modules {
    /// Parses a file as a module, and its submodules. `folder` is the directory of submodule files.
    fn read_file(&mut self, file: &Path, folder: &Path, parent: Option<usize>) -> Result<usize> {
        let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
        let tree = syn::parse_file(&text).with_context(|| file.display().to_string())?;
        self.read_items(&tree.items, file, folder, parent)
    }

    fn read_items(
        &mut self,
        items: &[Item],
        file: &Path,
        folder: &Path,
        parent: Option<usize>,
    ) -> Result<usize> {
        let mut module = Module {
            file: file.to_owned(),
            parent,
            ..Module::default()
        };
        let mut children: Vec<&ItemMod> = Vec::new();
        for item in items {
            match item {
                Item::Mod(child) if !is_test(&child.attrs) => children.push(child),
                _ => {
                    if let Some(name) = name_of(item) {
                        module.items.insert(name);
                    }
                    module.visit_item(item);
                }
            }
        }
        let number = self.all.len();
        self.all.push(module);
        for child in children {
            let name = child.ident.to_string();
            let below = folder.join(&name);
            let read = match &child.content {
                Some((_, items)) => self.read_items(items, file, &below, Some(number))?,
                None => {
                    let flat = folder.join(format!("{name}.rs"));
                    let own = match path_attribute(&child.attrs) {
                        Some(path) => file.parent().unwrap_or(folder).join(path),
                        None if flat.exists() => flat,
                        None => below.join("mod.rs"),
                    };
                    self.read_file(&own, &below, Some(number))?
                }
            };
            self.all[number].children.insert(name, read);
        }
        Ok(number)
    }

    fn arrows(&self) -> Arrows {
        let mut arrows = Arrows::new();
        for (number, module) in self.all.iter().enumerate() {
            for path in &module.paths {
                let Some(Target::Module(target) | Target::Item(target)) = self.resolve(number, path) else {
                    continue;
                };
                let to = &self.all[target].file;
                if *to != module.file {
                    let names = arrows.entry(module.file.clone()).or_default();
                    let names = names.entry(to.clone()).or_default();
                    names.insert(path.last().cloned().unwrap_or_default());
                }
            }
        }
        arrows
    }

    /// Resolves a path used in a module; `None` if it leads out of the crate.
    fn resolve(&self, from: usize, path: &[String]) -> Option<Target> {
        let (first, mut rest) = path.split_first()?;
        let mut at = match first.as_str() {
            "crate" => 0,
            "self" => from,
            "super" => self.all[from].parent?,
            _ => match self.find(from, first)? {
                Target::Module(module) => module,
                item @ Target::Item(_) => return Some(item),
            },
        };
        while let Some((name, left)) = rest.split_first() {
            rest = left;
            at = match name.as_str() {
                "super" => self.all[at].parent?,
                _ => match self.find(at, name)? {
                    Target::Module(module) => module,
                    item @ Target::Item(_) => return Some(item),
                },
            };
        }
        Some(Target::Module(at))
    }

    /// Resolves a name in a module.
    fn find(&self, module: usize, name: &str) -> Option<Target> {
        let key = (module, name.to_owned());
        if let Some(known) = self.found.borrow().get(&key) {
            return *known;
        }
        self.found.borrow_mut().insert(key.clone(), None);
        let found = self.look_up(module, name);
        self.found.borrow_mut().insert(key, found);
        found
    }

    fn look_up(&self, module: usize, name: &str) -> Option<Target> {
        let here = &self.all[module];
        if here.items.contains(name) {
            return Some(Target::Item(module));
        }
        if let Some(child) = here.children.get(name) {
            return Some(Target::Module(*child));
        }
        if let Some(path) = here.imports.get(name) {
            return self.resolve(module, path);
        }
        here.globs.iter().find_map(|path| {
            let path: Vec<String> = path.iter().cloned().chain([name.to_owned()]).collect();
            self.resolve(module, &path)
        })
    }
}

impl Visit<'_> for Module {
    fn visit_item(&mut self, item: &Item) {
        if !is_test(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &ItemUse) {
        let is_private = matches!(item.vis, Visibility::Inherited);
        let mut leaves = Vec::new();
        flatten(&item.tree, &mut Vec::new(), &mut leaves);
        for (name, path) in leaves {
            if is_private {
                self.paths.push(path.clone());
            }
            match name {
                Some(name) => {
                    self.imports.insert(name, path);
                }
                None => self.globs.push(path),
            }
        }
    }

    /// Ignores paths in visibilities such as `pub(in path)`, since they are not dependencies.
    fn visit_visibility(&mut self, _: &Visibility) {}

    fn visit_path(&mut self, path: &syn::Path) {
        self.paths.push(
            path.segments
                .iter()
                .map(|segment| segment.ident.to_string())
                .collect(),
        );
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &Macro) {
        visit::visit_macro(self, call);
        // The arguments of most macros are expressions. Other arguments are ignored.
        if let Ok(arguments) = call.parse_body_with(Punctuated::<Expr, Token![,]>::parse_terminated) {
            for argument in &arguments {
                self.visit_expr(argument);
            }
        }
    }
}

/// Flattens an import tree into paths, each with its local name; `None` for globs.
fn flatten(tree: &UseTree, before: &mut Vec<String>, leaves: &mut Vec<(Option<String>, Vec<String>)>) {
    match tree {
        UseTree::Path(path) => {
            before.push(path.ident.to_string());
            flatten(&path.tree, before, leaves);
            before.pop();
        }
        UseTree::Name(name) if name.ident == "self" => leaves.push((before.last().cloned(), before.clone())),
        UseTree::Name(name) => {
            let name = name.ident.to_string();
            leaves.push((Some(name.clone()), with(before, name)));
        }
        UseTree::Rename(rename) => {
            let path = with(before, rename.ident.to_string());
            leaves.push((Some(rename.rename.to_string()), path));
        }
        UseTree::Glob(_) => leaves.push((None, before.clone())),
        UseTree::Group(group) => {
            for tree in &group.items {
                flatten(tree, before, leaves);
            }
        }
    }
}

fn with(path: &[String], name: String) -> Vec<String> {
    path.iter().cloned().chain([name]).collect()
}

fn name_of(item: &Item) -> Option<String> {
    let name = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::TraitAlias(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(name.to_string())
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute
                .parse_args()
                .is_ok_and(|condition| demands_test(&condition))
    })
}

fn demands_test(condition: &Meta) -> bool {
    match condition {
        Meta::Path(path) => path.is_ident("test"),
        Meta::List(list) if list.path.is_ident("all") => list
            .parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated)
            .is_ok_and(|all| all.iter().any(demands_test)),
        _ => false,
    }
}

/// Returns the file of `#[path = "…"]`.
fn path_attribute(attributes: &[Attribute]) -> Option<String> {
    let attribute = attributes
        .iter()
        .find(|attribute| attribute.path().is_ident("path"))?;
    let value = &attribute.meta.require_name_value().ok()?.value;
    match value {
        Expr::Lit(literal) => match &literal.lit {
            syn::Lit::Str(path) => Some(path.value()),
            _ => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the dependency cycles among these files.
    fn circles_of(files: &[(&str, &str)]) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let file = folder.path().join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        let found = of_crate(&folder.path().join("lib.rs")).unwrap();
        let prefix = format!("{}/", folder.path().display());
        found.into_iter().map(|line| line.replace(&prefix, "")).collect()
    }

    #[test]
    fn two_files_that_import_each_other_are_a_circle() {
        let found = circles_of(&[
            ("lib.rs", "mod a; mod b;"),
            ("a.rs", "use crate::b::{B, more}; pub struct A;"),
            ("b.rs", "pub struct B(super::a::A); pub fn more() {}"),
        ]);
        assert_eq!(found, ["a.rs takes B, more from b.rs; b.rs takes A from a.rs"]);
    }

    #[test]
    fn uses_of_a_module_are_found_in_its_files_and_in_no_others() {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("lib.rs", "mod low; mod left; mod right; pub use left::deep::A;"),
            ("low.rs", "pub struct Low;"),
            ("left/mod.rs", "pub mod deep; use crate::low::Low;"),
            ("left/deep.rs", "pub struct A(crate::low::Low);"),
            ("right.rs", "pub struct B(crate::A);"),
        ] {
            let file = folder.path().join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        let uses = |from, to| {
            let found = uses(&folder.path().join("lib.rs"), from, to).unwrap();
            let prefix = format!("{}/", folder.path().display());
            let lines = found.into_iter().map(|line| line.replace(&prefix, ""));
            lines.collect::<Vec<_>>()
        };
        assert_eq!(uses("right", "left"), ["right.rs takes A from left/deep.rs"]);
        assert_eq!(uses("left", "low").len(), 2);
        for (from, to) in [("left", "right"), ("low", "left"), ("low", "right")] {
            assert!(uses(from, to).is_empty());
        }
    }

    #[test]
    fn names_that_are_passed_on_lead_to_their_definition() {
        let files = |root| {
            [
                ("lib.rs", root),
                ("a/mod.rs", "mod inner; pub use inner::A; use crate::B;"),
                ("a/inner.rs", "pub struct A;"),
                ("b.rs", "fn f() -> usize { size_of::<crate::A>() } pub struct B;"),
            ]
        };
        // `b` uses the file `a/inner`, and the file `a` uses `b`, so no two files form a cycle.
        assert!(circles_of(&files("mod a; mod b; pub use a::A; pub use b::B;")).is_empty());
        let found = circles_of(&[
            ("lib.rs", "mod a; mod b; pub use a::*; pub use b::B as C;"),
            ("a.rs", "use super::C; pub struct A;"),
            (
                "b.rs",
                "fn f() { println!(\"{}\", crate::A::NAME) } pub struct B;",
            ),
        ]);
        assert_eq!(found, ["a.rs takes C from b.rs; b.rs takes NAME from a.rs"]);
    }

    #[test]
    fn a_module_and_its_submodule_can_be_a_circle() {
        let found = circles_of(&[
            ("lib.rs", "mod a;"),
            (
                "a/mod.rs",
                "mod inner; use self::inner::go; pub struct A; fn f() { go() }",
            ),
            ("a/inner.rs", "use super::A; pub fn go() {}"),
        ]);
        assert_eq!(
            found,
            ["a/inner.rs takes A from a/mod.rs; a/mod.rs takes go from a/inner.rs"]
        );
    }

    #[test]
    fn tests_other_crates_and_modules_within_a_file_are_none() {
        let found = circles_of(&[
            (
                "lib.rs",
                "mod a; mod b; mod inner { use super::f; pub fn g() {} } fn f() { inner::g() }",
            ),
            ("a.rs", "use std::fmt; use crate::b::B; pub struct A;"),
            (
                "b.rs",
                "pub(in crate::a) struct B; #[cfg(test)] mod tests { use crate::a::A; } #[cfg(all(test, unix))] use crate::a;",
            ),
        ]);
        assert_eq!(found, Vec::<String>::new());
    }
}
