//! The contents of Rust files, as `syn` parses them.

use crate::text;
use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::mem;
use std::rc::Rc;
use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};
use syn::{
    Attribute, Expr, ExprCall, ExprLit, ExprReturn, ExprUnsafe, FnArg, Generics, Ident, ImplItemFn, Item, ItemEnum,
    ItemFn, ItemForeignMod, ItemImpl, ItemMacro, ItemStruct, ItemTrait, Lit, LitStr, Macro, Meta, ReturnType,
    Signature, Token, TraitBound, Type, TypeSlice, Visibility,
};

/// Parses a file of this project. Each thread parses a file once.
pub(crate) fn parse(path: &str) -> Rc<syn::File> {
    thread_local! {
        static PARSED: RefCell<HashMap<String, Rc<syn::File>>> = RefCell::default();
    }
    let file = || Rc::new(syn::parse_file(&text(path)).unwrap_or_else(|error| panic!("{path}: {error}")));
    PARSED.with_borrow_mut(|parsed| Rc::clone(parsed.entry(path.to_owned()).or_insert_with(file)))
}

fn is(attribute: &Attribute, name: &str) -> bool {
    attribute.path().is_ident(name)
}

/// The errors of a file that have `#[error(..)]`: their names, as `Struct` or `Enum::Variant`, and that attribute.
pub(crate) fn error_texts(file: &syn::File) -> Vec<(String, String)> {
    struct Errors(Vec<(String, String)>);
    impl Errors {
        fn add(&mut self, name: &str, attributes: &[Attribute]) {
            for attribute in attributes.iter().filter(|attribute| is(attribute, "error")) {
                let Meta::List(list) = &attribute.meta else { continue };
                self.0.push((name.to_owned(), list.tokens.to_string()));
            }
        }
    }
    impl<'ast> Visit<'ast> for Errors {
        fn visit_item_struct(&mut self, item: &'ast ItemStruct) {
            self.add(&item.ident.to_string(), &item.attrs);
        }

        fn visit_item_enum(&mut self, item: &'ast ItemEnum) {
            for variant in &item.variants {
                self.add(&format!("{}::{}", item.ident, variant.ident), &variant.attrs);
            }
        }
    }
    let mut errors = Errors(Vec::new());
    errors.visit_file(file);
    errors.0
}

/// A function that has `#[test]`.
pub(crate) struct Test {
    pub(crate) name: String,
    pub(crate) is_ignored: bool,
    pub(crate) body: Body,
}

/// The tests of a file, including those in its inline modules.
pub(crate) fn tests(file: &syn::File) -> Vec<Test> {
    struct Tests(Vec<Test>);
    impl<'ast> Visit<'ast> for Tests {
        fn visit_item_fn(&mut self, function: &'ast ItemFn) {
            if function.attrs.iter().any(|attribute| is(attribute, "test")) {
                let mut body = Body::default();
                body.visit_block(&function.block);
                let is_ignored = function.attrs.iter().any(|attribute| is(attribute, "ignore"));
                self.0.push(Test { name: function.sig.ident.to_string(), is_ignored, body });
            }
        }
    }
    let mut tests = Tests(Vec::new());
    tests.visit_file(file);
    tests.0
}

/// The contents of a block of code, including the arguments of macros.
#[derive(Default)]
pub(crate) struct Body {
    /// All names in paths.
    pub(crate) names: BTreeSet<String>,
    /// The functions that are called, by the last segment of their path. If the first argument is a string, it is
    /// included.
    pub(crate) calls: BTreeSet<(String, Option<String>)>,
    /// The macros that are called.
    pub(crate) macros: BTreeSet<String>,
    /// Whether it has a `return` without a value.
    pub(crate) may_end_early: bool,
}

impl Body {
    pub(crate) fn calls(&self, function: &str) -> bool {
        self.calls.iter().any(|(called, _)| called == function)
    }

    pub(crate) fn calls_with(&self, function: &str, argument: &str) -> bool {
        self.calls.contains(&(function.to_owned(), Some(argument.to_owned())))
    }
}

impl<'ast> Visit<'ast> for Body {
    fn visit_expr_call(&mut self, call: &'ast ExprCall) {
        if let Expr::Path(function) = &*call.func
            && let Some(last) = function.path.segments.last()
        {
            let argument = match call.args.first() {
                Some(Expr::Lit(ExprLit { lit: Lit::Str(text), .. })) => Some(text.value()),
                _ => None,
            };
            self.calls.insert((last.ident.to_string(), argument));
        }
        visit::visit_expr_call(self, call);
    }

    fn visit_path_segment(&mut self, segment: &'ast syn::PathSegment) {
        self.names.insert(segment.ident.to_string());
        visit::visit_path_segment(self, segment);
    }

    fn visit_expr_return(&mut self, expression: &'ast ExprReturn) {
        self.may_end_early |= expression.expr.is_none();
        visit::visit_expr_return(self, expression);
    }

    fn visit_macro(&mut self, called: &'ast Macro) {
        self.macros.extend(called.path.segments.last().map(|last| last.ident.to_string()));
        // Most macros take a list of expressions. If a macro takes anything else, its arguments are not searched.
        if let Ok(arguments) = called.parse_body_with(Punctuated::<Expr, Token![,]>::parse_terminated) {
            // A visitor is tied to the lifetime of the file, but these expressions are a copy. So they get a visitor of
            // their own.
            let mut inner = Body::default();
            arguments.iter().for_each(|argument| inner.visit_expr(argument));
            self.names.append(&mut inner.names);
            self.calls.append(&mut inner.calls);
            self.macros.append(&mut inner.macros);
            self.may_end_early |= inner.may_end_early;
        }
    }
}

/// The tests that a file runs a second time, on extended queues; `None` if it has no `also_extended!`.
pub(crate) fn also_extended(file: &syn::File) -> Option<BTreeSet<String>> {
    let calls = file.items.iter().filter_map(|item| match item {
        Item::Macro(ItemMacro { mac, .. }) if mac.path.segments.last()?.ident == "also_extended" => Some(mac),
        _ => None,
    });
    let names = |mac: &Macro| mac.parse_body_with(Punctuated::<Ident, Token![,]>::parse_terminated).unwrap();
    calls.map(|mac| names(mac).iter().map(Ident::to_string).collect()).next()
}

/// The strings in a constant.
pub(crate) fn strings_of_constant(file: &syn::File, name: &str) -> BTreeSet<String> {
    struct Strings(BTreeSet<String>);
    impl<'ast> Visit<'ast> for Strings {
        fn visit_lit_str(&mut self, text: &'ast LitStr) {
            self.0.insert(text.value());
        }
    }
    let mut strings = Strings(BTreeSet::new());
    for item in &file.items {
        match item {
            Item::Const(constant) if constant.ident == name => strings.visit_expr(&constant.expr),
            _ => (),
        }
    }
    strings.0
}

/// Whether a file has unsafe code, or allows it.
pub(crate) fn has_unsafe(file: &syn::File) -> bool {
    struct Unsafe(bool);
    impl<'ast> Visit<'ast> for Unsafe {
        fn visit_expr_unsafe(&mut self, _: &'ast ExprUnsafe) {
            self.0 = true;
        }
        fn visit_signature(&mut self, signature: &'ast Signature) {
            self.0 |= signature.unsafety.is_some();
            visit::visit_signature(self, signature);
        }
        fn visit_item_impl(&mut self, item: &'ast ItemImpl) {
            self.0 |= item.unsafety.is_some();
            visit::visit_item_impl(self, item);
        }
        fn visit_item_trait(&mut self, item: &'ast ItemTrait) {
            self.0 |= item.unsafety.is_some();
            visit::visit_item_trait(self, item);
        }
        fn visit_item_foreign_mod(&mut self, item: &'ast ItemForeignMod) {
            self.0 |= item.unsafety.is_some();
        }
        fn visit_attribute(&mut self, attribute: &'ast Attribute) {
            let mut allowed = false;
            if is(attribute, "allow") {
                // `parse_nested_meta` returns an error at `reason = "..."`. The names of the lints come before the
                // reason, so ignore the error.
                let _ = attribute.parse_nested_meta(|meta| {
                    allowed |= meta.path.is_ident("unsafe_code");
                    Ok(())
                });
            }
            self.0 |= allowed;
        }
        fn visit_macro(&mut self, called: &'ast Macro) {
            // The tokens of a macro are not parsed, so search them for the word `unsafe`.
            self.0 |= called.tokens.to_string().split_whitespace().any(|word| word == "unsafe");
        }
    }
    let mut found = Unsafe(false);
    found.visit_file(file);
    found.0
}

/// The type names in a part of a file.
#[derive(Default)]
struct Names {
    all: BTreeSet<String>,
    /// Whether it is, or contains, a collection of values.
    has_several: bool,
    /// Whether it is a function or a closure that returns anything but a request.
    is_other_function: bool,
}

impl<'ast> Visit<'ast> for Names {
    fn visit_ident(&mut self, name: &'ast Ident) {
        self.all.insert(name.to_string());
        self.has_several |= ["Vec", "Iterator", "IntoIterator", "FnMut"].iter().any(|several| name == several);
    }

    fn visit_type_slice(&mut self, slice: &'ast TypeSlice) {
        self.has_several = true;
        visit::visit_type_slice(self, slice);
    }

    fn visit_type_array(&mut self, array: &'ast syn::TypeArray) {
        self.has_several = true;
        visit::visit_type_array(self, array);
    }

    fn visit_trait_bound(&mut self, bound: &'ast TraitBound) {
        if let Some(last) = bound.path.segments.last()
            && let syn::PathArguments::Parenthesized(function) = &last.arguments
        {
            let makes_request = match &function.output {
                ReturnType::Type(_, made) => Names::of_type(made).all.contains("WorkRequest"),
                ReturnType::Default => false,
            };
            self.is_other_function |= !makes_request;
        }
        visit::visit_trait_bound(self, bound);
    }
}

impl Names {
    fn of_type(part: &Type) -> Self {
        let mut names = Self::default();
        names.visit_type(part);
        names
    }
}

/// Finds the public functions that take two objects of one brand.
#[derive(Default)]
struct Meetings {
    /// Whether the `impl` block being visited names a brand.
    is_branded: bool,
    found: BTreeSet<String>,
}

impl Meetings {
    /// How many objects with a brand a function takes. A parameter that is a collection counts as several.
    fn branded(&self, signature: &Signature) -> usize {
        let mut brands = BTreeSet::from(["B".to_owned()]);
        brands.extend(self.is_branded.then(|| "Self".to_owned()));
        brands.extend(branded_parameters(&signature.generics));
        let bears = |names: &Names| !names.is_other_function && !names.all.is_disjoint(&brands);
        let count = |given: &FnArg| match given {
            FnArg::Receiver(_) => usize::from(self.is_branded),
            FnArg::Typed(given) => {
                let names = Names::of_type(&given.ty);
                usize::from(bears(&names)) * if names.has_several { 2 } else { 1 }
            }
        };
        signature.inputs.iter().map(count).sum()
    }

    fn note(&mut self, visibility: &Visibility, signature: &Signature) {
        if matches!(visibility, Visibility::Public(_)) && self.branded(signature) > 1 {
            self.found.insert(signature.ident.to_string());
        }
    }
}

/// The type parameters whose bounds name the brand `B`.
fn branded_parameters(generics: &Generics) -> Vec<String> {
    let names_brand = |parameter: &&syn::TypeParam| {
        let mut names = Names::default();
        parameter.bounds.iter().for_each(|bound| names.visit_type_param_bound(bound));
        names.all.contains("B")
    };
    generics.type_params().filter(names_brand).map(|parameter| parameter.ident.to_string()).collect()
}

impl<'ast> Visit<'ast> for Meetings {
    fn visit_item_impl(&mut self, item: &'ast ItemImpl) {
        let mut head = Names::of_type(&item.self_ty);
        head.visit_generics(&item.generics);
        if let Some((_, path, _)) = &item.trait_ {
            head.visit_path(path);
        }
        let outer = mem::replace(&mut self.is_branded, head.all.contains("B"));
        visit::visit_item_impl(self, item);
        self.is_branded = outer;
    }

    fn visit_impl_item_fn(&mut self, function: &'ast ImplItemFn) {
        self.note(&function.vis, &function.sig);
    }

    fn visit_item_fn(&mut self, function: &'ast ItemFn) {
        self.note(&function.vis, &function.sig);
    }
}

/// The names of the public functions of a file that take two objects of one brand.
pub(crate) fn meetings(file: &syn::File) -> BTreeSet<String> {
    let mut meetings = Meetings::default();
    meetings.visit_file(file);
    meetings.found
}
