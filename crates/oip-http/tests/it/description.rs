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

/// Every operation: its path with parameters filled in, its method, and what is said about it.
fn operations(description: &Value) -> Vec<(String, Method, Value)> {
    let mut found = Vec::new();
    for (path, methods) in object(&description["paths"]) {
        let model = if path.contains("versions") {
            "matrix"
        } else {
            "identity_fp32"
        };
        let path = path
            .replace("{model}", model)
            .replace("{version}", "1")
            .replace("{region}", "r");
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

/// Whether a value is what a schema says, as far as the description uses schemas.
fn check(description: &Value, schema: &Value, value: &Value, place: &str) {
    let schema = resolve(description, schema);
    for part in schema
        .get("allOf")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        check(description, part, value, place);
    }
    if let Some(constant) = schema.get("const") {
        assert_eq!(value, constant, "{place}");
    }
    if let Some(known) = schema.get("enum") {
        assert!(known.as_array().unwrap().contains(value), "{place}: {value}");
    }
    if let Some(types) = schema.get("type") {
        let names: Vec<&str> = types.as_str().map_or_else(
            || {
                types
                    .as_array()
                    .unwrap()
                    .iter()
                    .filter_map(Value::as_str)
                    .collect()
            },
            |name| vec![name],
        );
        let name = match value {
            Value::Null => "null",
            Value::Bool(_) => "boolean",
            Value::Number(number) if number.is_f64() => "number",
            Value::Number(_) => "integer",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        };
        assert!(
            names.contains(&name) || (name == "integer" && names.contains(&"number")),
            "{place}: {value}"
        );
    }
    let text = value.as_str();
    if let (Some(least), Some(found)) = (schema.get("minimum").and_then(Value::as_f64), value.as_f64()) {
        assert!(found >= least, "{place}: {value}");
    }
    if let (Some(least), Some(text)) = (schema.get("minLength").and_then(Value::as_u64), text) {
        assert!(text.len() as u64 >= least, "{place}: {value}");
    }
    for required in schema
        .get("required")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        assert!(
            value.get(required.as_str().unwrap()).is_some(),
            "{place}: no {required} in {value}"
        );
    }
    for (name, value) in value.as_object().into_iter().flatten() {
        let known = schema
            .pointer(&format!("/properties/{name}"))
            .or_else(|| schema.get("additionalProperties"));
        match known {
            Some(schema) if schema.is_object() => {
                check(description, schema, value, &format!("{place}.{name}"));
            }
            // What a schema leaves open.
            None if schema.get("properties").is_none() => {}
            Some(Value::Bool(true)) => {}
            _ => panic!("{place}: {name} is not described"),
        }
    }
    if let Some(items) = schema.get("items") {
        for (index, value) in value.as_array().into_iter().flatten().enumerate() {
            check(description, items, value, &format!("{place}[{index}]"));
        }
    }
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
        // The example is for a model that has one input.
        let is_other_model = path.contains("versions") && path.ends_with("/infer");
        let expected = if is_other_model {
            StatusCode::BAD_REQUEST
        } else {
            StatusCode::OK
        };
        assert_eq!(answer.status, expected, "{place}: {}", answer.text());
        check_answer(&description, &operation, &answer, &place);

        let wrong = send(&app, Method::PATCH, &path, Body::empty()).await;
        assert_eq!(wrong.status, StatusCode::METHOD_NOT_ALLOWED, "{place}");
        check_answer(&description, &operation, &wrong, &place);
        let broken = send(&app, method, &path, Body::from("{\"a\":")).await;
        check_answer(
            &description,
            &operation,
            &broken,
            &format!("{place} with a broken body"),
        );
    }
}

#[tokio::test]
async fn nothing_is_there_that_is_not_described() {
    let description = description();
    let described: Vec<&String> = object(&description["paths"]).keys().collect();
    for path in oip_http::paths() {
        // What no service offers has no description, only an answer.
        let is_answered_only = [
            "/v2/cudasharedmemory",
            "/trace/setting",
            "/v2/repository/{repository}",
        ];
        if is_answered_only.iter().any(|part| path.contains(part)) {
            continue;
        }
        assert!(described.contains(&&path), "{path} is not described");
    }
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
