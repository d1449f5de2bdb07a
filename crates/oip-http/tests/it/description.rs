//! The `OpenAPI` description is true: its paths are those of the router, and its examples do what it says.

use axum::{
    body::Body,
    http::{Method, StatusCode},
};
use serde_json::{Map, Value};

use crate::support::{Answer, app, app_with, get, send};

fn description() -> Value {
    serde_json::from_str(oip_http::OPENAPI).unwrap()
}

fn object(value: &Value) -> &Map<String, Value> {
    value.as_object().unwrap()
}

/// A path with its parameters filled in.
fn fill(path: &str) -> String {
    let model = if path.contains("versions") {
        "matrix"
    } else {
        "identity_fp32"
    };
    path.replace("{model}", model)
        .replace("{version}", "1")
        .replace("{region}", "r")
        .replace("{repository}", "other")
}

/// Every operation: its path with parameters filled in, its method, and what is said about it.
fn operations(description: &Value) -> Vec<(String, Method, Value)> {
    let mut found = Vec::new();
    for (path, methods) in object(&description["paths"]) {
        let path = fill(path);
        for (method, operation) in object(methods) {
            found.push((
                path.clone(),
                method.to_uppercase().parse().unwrap(),
                operation.clone(),
            ));
        }
    }
    found
}

/// Follows a reference.
fn resolve<'d>(description: &'d Value, value: &'d Value) -> &'d Value {
    match value.get("$ref").and_then(Value::as_str) {
        None => value,
        Some(reference) => description
            .pointer(&reference[1..])
            .unwrap_or_else(|| panic!("{reference} leads nowhere")),
    }
}

/// Whether a value is what a schema says. A keyword that is not known here is an error, so none goes unchecked.
fn check(description: &Value, schema: &Value, value: &Value, place: &str) {
    for (keyword, rule) in object(schema) {
        check_keyword(description, schema, (keyword, rule), value, place);
    }
}

fn check_keyword(
    description: &Value,
    schema: &Value,
    (keyword, rule): (&str, &Value),
    value: &Value,
    place: &str,
) {
    let (text, list, members) = (value.as_str(), value.as_array(), value.as_object());
    let at_most = |found: Option<usize>| found.is_none_or(|found| found as u64 <= rule.as_u64().unwrap());
    let is_fine = match keyword {
        "description" | "format" => true,
        "$ref" => {
            check(description, resolve(description, schema), value, place);
            true
        }
        "allOf" => {
            let parts = rule.as_array().unwrap();
            parts
                .iter()
                .for_each(|part| check(description, part, value, place));
            true
        }
        // Used for plain types only, so that a look at the types decides.
        "oneOf" => {
            let parts = rule.as_array().unwrap();
            parts.iter().filter(|part| has_type(&part["type"], value)).count() == 1
        }
        "const" => value == rule,
        "enum" => rule.as_array().unwrap().contains(value),
        "type" => has_type(rule, value),
        "minimum" => value.as_f64().is_none_or(|found| found >= rule.as_f64().unwrap()),
        "maximum" => value.as_f64().is_none_or(|found| found <= rule.as_f64().unwrap()),
        "minLength" => text.is_none_or(|text| text.chars().count() as u64 >= rule.as_u64().unwrap()),
        "maxLength" => at_most(text.map(|text| text.chars().count())),
        "maxItems" => at_most(list.map(Vec::len)),
        "maxProperties" => at_most(members.map(Map::len)),
        "required" => {
            let required = rule.as_array().unwrap();
            required
                .iter()
                .all(|name| value.get(name.as_str().unwrap()).is_some())
        }
        "items" => {
            for (index, item) in list.into_iter().flatten().enumerate() {
                check(description, rule, item, &format!("{place}[{index}]"));
            }
            true
        }
        "properties" => {
            for (name, member) in members.into_iter().flatten() {
                match (rule.get(name), schema.get("additionalProperties")) {
                    (Some(rule), _) => check(description, rule, member, &format!("{place}.{name}")),
                    (None, Some(rule)) if rule != &Value::Bool(false) => {}
                    // What answers have is described, although clients must bear with more.
                    (None, _) => panic!("{place}: {name} is not described"),
                }
            }
            true
        }
        "additionalProperties" => {
            let known = |name: &str| schema.pointer(&format!("/properties/{name}")).is_some();
            let others = members.into_iter().flatten().filter(|(name, _)| !known(name));
            for (name, member) in others.filter(|_| rule.is_object()) {
                check(description, rule, member, &format!("{place}.{name}"));
            }
            true
        }
        _ => panic!("{place}: the keyword {keyword} is not known"),
    };
    assert!(is_fine, "{place}: {keyword} {rule} does not hold for {value}");
}

fn has_type(types: &Value, value: &Value) -> bool {
    let name = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let is = |known: &Value| known == name || (known == "number" && name == "integer");
    types
        .as_array()
        .map_or_else(|| is(types), |types| types.iter().any(is))
}

/// An answer is one of those that are described.
fn check_answer(description: &Value, operation: &Value, answer: &Answer, place: &str) {
    let status = answer.status.as_u16().to_string();
    let described = operation["responses"].get(&status);
    let described = resolve(
        description,
        described.unwrap_or_else(|| &operation["responses"]["default"]),
    );
    let Some(content) = described.get("content") else {
        assert_eq!(answer.text(), "", "{place}");
        return;
    };
    let media = answer.header("content-type").unwrap().split(';').next().unwrap();
    let schema = &content
        .get(media)
        .unwrap_or_else(|| panic!("{place}: {media} is not described"))["schema"];
    if media == "application/json" {
        check(description, schema, &answer.json(), place);
    }
}

fn body(operation: &Value) -> Body {
    match operation.pointer("/requestBody/content/application~1json/example") {
        None => Body::empty(),
        Some(example) => Body::from(example.to_string()),
    }
}

#[tokio::test]
async fn every_operation_is_there_and_answers_as_described() {
    let description = description();
    let (app, service) = app_with(oip_http::HttpConfig::default());
    service.share("/inputs", vec![0; 1024]);
    for (path, method, operation) in operations(&description) {
        if path.ends_with("/region/r/status") {
            // The path is described before the one that registers.
            let register =
                description["paths"]["/v2/systemsharedmemory/region/{region}/register"]["post"].clone();
            send(
                &app,
                Method::POST,
                "/v2/systemsharedmemory/region/r/register",
                body(&register),
            )
            .await;
        } else if path.ends_with("/register") {
            send(
                &app,
                Method::POST,
                "/v2/systemsharedmemory/unregister",
                Body::empty(),
            )
            .await;
        }
        let answer = send(&app, method.clone(), &path, body(&operation)).await;
        let place = format!("{method} {path}");
        assert_eq!(answer.status, StatusCode::OK, "{place}: {}", answer.text());
        // An example that is the whole truth of the service that is asked here.
        let is_exact = path.ends_with("/infer") || path.starts_with("/v2/health");
        if let Some(example) = operation.pointer("/responses/200/content/application~1json/example")
            && is_exact
        {
            assert_eq!(&answer.json(), example, "{place}");
        }
        check_answer(&description, &operation, &answer, &place);

        let broken = send(&app, method, &path, Body::from("{\"a\":")).await;
        check_answer(
            &description,
            &operation,
            &broken,
            &format!("{place} with a broken body"),
        );
    }
}

/// Paths that only say that no service offers this, or that repositories have no names: they answer, since Triton's
/// clients call them, but they are nothing to be described.
const ONLY_REFUSED: [&str; 10] = [
    "/v2/cudasharedmemory/status",
    "/v2/cudasharedmemory/region/{region}/status",
    "/v2/cudasharedmemory/region/{region}/register",
    "/v2/cudasharedmemory/region/{region}/unregister",
    "/v2/cudasharedmemory/unregister",
    "/v2/trace/setting",
    "/v2/models/{model}/trace/setting",
    "/v2/repository/{repository}/index",
    "/v2/repository/{repository}/models/{model}/load",
    "/v2/repository/{repository}/models/{model}/unload",
];

/// HT-14: every path has the methods that are described, `HEAD` where it has `GET`, and no others; the others are
/// refused with the list of those it has. Nothing is there that is not described, and nothing is described that is not.
#[tokio::test]
async fn ht_14_every_path_has_the_methods_that_are_described() {
    let description = description();
    let app = app();
    let mut described: Vec<&String> = object(&description["paths"]).keys().collect();
    for path in oip_http::paths() {
        let filled = fill(&path);
        let is_refused = ONLY_REFUSED.contains(&path.as_str());
        let mut found = Vec::new();
        let mut allowed = None;
        for method in [
            "GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "BREW",
        ] {
            let answer = send(&app, method.parse().unwrap(), &filled, Body::empty()).await;
            if answer.status == StatusCode::METHOD_NOT_ALLOWED {
                if method != "HEAD" {
                    assert_eq!(answer.error(), "Method Not Allowed");
                }
                allowed = answer.header("allow").map(str::to_owned);
                continue;
            }
            assert!(
                !is_refused || answer.status == StatusCode::NOT_IMPLEMENTED,
                "{method} {path} is offered, but not described"
            );
            found.push(method);
        }
        // The order is that of the table of routes.
        let allowed = allowed.unwrap();
        let mut allowed: Vec<&str> = allowed.split(',').collect();
        allowed.sort_unstable();
        found.sort_unstable();
        assert_eq!(allowed, found, "{path}");
        if is_refused {
            continue;
        }
        let place = described.iter().position(|known| **known == path);
        described.remove(place.unwrap_or_else(|| panic!("{path} is not described")));
        let mut methods: Vec<String> = object(&description["paths"][&path])
            .keys()
            .map(|method| method.to_uppercase())
            .collect();
        methods.extend(methods.contains(&"GET".to_owned()).then(|| "HEAD".to_owned()));
        methods.sort_unstable();
        assert_eq!(methods, found, "{path}");
    }
    assert!(described.is_empty(), "nothing answers on {described:?}");
}

/// References lead somewhere, and nothing is described that nobody refers to.
#[test]
fn references_and_components_belong_together() {
    fn find<'d>(value: &'d Value, found: &mut Vec<&'d str>) {
        match value {
            Value::Object(members) => {
                found.extend(members.get("$ref").and_then(Value::as_str));
                members.values().for_each(|value| find(value, found));
            }
            Value::Array(items) => items.iter().for_each(|value| find(value, found)),
            _ => {}
        }
    }
    let description = description();
    assert_eq!(description["openapi"], "3.1.0");
    let mut references = Vec::new();
    find(&description, &mut references);
    for reference in &references {
        assert!(
            description.pointer(&reference[1..]).is_some(),
            "{reference} leads nowhere"
        );
    }
    for (kind, components) in object(&description["components"]) {
        for name in object(components).keys() {
            let reference = format!("#/components/{kind}/{name}");
            assert!(
                references.contains(&reference.as_str()),
                "{reference} is not used"
            );
        }
    }
    let mut ids: Vec<String> = operations(&description)
        .iter()
        .map(|(_, _, operation)| operation["operationId"].as_str().unwrap().to_owned())
        .collect();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), operations(&description).len());
}

#[tokio::test]
async fn examples_of_answers_are_of_the_form_that_is_described() {
    let description = description();
    let mut examples = 0;
    for (path, _, operation) in operations(&description) {
        for (status, answer) in object(&operation["responses"]) {
            let answer = resolve(&description, answer);
            for content in answer
                .get("content")
                .into_iter()
                .flat_map(|content| object(content).values())
            {
                if let Some(example) = content.get("example") {
                    examples += 1;
                    check(
                        &description,
                        &content["schema"],
                        example,
                        &format!("{path} {status}"),
                    );
                }
            }
        }
    }
    assert!(examples > 5);
}

#[tokio::test]
async fn the_page_needs_nothing_from_elsewhere() {
    let page = get(&app(), "/docs").await;
    assert_eq!(page.status, StatusCode::OK);
    assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
    assert!(
        page.header("content-security-policy")
            .unwrap()
            .starts_with("default-src 'none'")
    );
    let text = page.text();
    assert!(
        !text.contains("http://") && !text.contains("https://"),
        "the page links elsewhere"
    );
    assert!(!text.contains("innerHTML"));
    assert_eq!(description()["info"]["version"], env!("CARGO_PKG_VERSION"));
}
