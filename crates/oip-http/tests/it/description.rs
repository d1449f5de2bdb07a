//! Tests that the `OpenAPI` description is accurate: its paths are the router's, and its examples work as
//! described.

use std::sync::Arc;

use axum::{
    body::{Body, HttpBody},
    http::{Method, Request, StatusCode},
};
use oip_http::{HttpConfig, HttpService};
use oip_model::BoxFuture;
use oip_service::{Grant, InferenceService, ModelRepository, Readiness, RequestContext, Rights};
use oip_types::{
    DataType, ErrorCode, InferRequest, InferResponse, LoadOptions, ModelIndexEntry, ModelMetadata, ModelRef,
    ModelState, ServerMetadata, ServiceError, TensorMetadata, UnloadOptions,
};
use serde_json::{Map, Value, json};
use tower::ServiceExt;

use crate::support::{TestResponse, app, app_with, call, get, send};

fn description() -> Value {
    serde_json::from_str(oip_http::OPENAPI).unwrap()
}

fn object(value: &Value) -> &Map<String, Value> {
    value.as_object().unwrap()
}

/// Fills in a path's parameters.
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

/// Returns every operation as its path with parameters filled in, its method, and its description.
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

/// Follows a reference to a component of the description.
fn resolve<'d>(description: &'d Value, value: &'d Value) -> &'d Value {
    match value.get("$ref").and_then(Value::as_str) {
        None => value,
        Some(reference) => description
            .pointer(&reference[1..])
            .unwrap_or_else(|| panic!("{reference} leads nowhere")),
    }
}

/// Validates a value against a schema. An unknown keyword is an error, so no keyword is silently ignored.
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
        "description" | "format" | "examples" => true,
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
        // The description has `oneOf` for plain types only, so comparing the types suffices.
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
        "minItems" => list.is_none_or(|list| list.len() as u64 >= rule.as_u64().unwrap()),
        "prefixItems" => {
            let both = rule.as_array().unwrap().iter().zip(list.into_iter().flatten());
            both.for_each(|(rule, item)| check(description, rule, item, place));
            true
        }
        // The alternatives are schemas of tensors. Checks the one for the tensor's name, or else the general
        // one.
        "anyOf" => {
            let parts = rule.as_array().unwrap();
            let name = |part: &&Value| part.pointer("/properties/name/const") == value.get("name");
            let named = parts.iter().find(name);
            let other = || parts.iter().find(|part| part.get("$ref").is_some());
            let part = named.or_else(other);
            part.iter()
                .for_each(|part| check(description, part, value, place));
            part.is_some()
        }
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
                    // A later schema in `allOf` refines only some members; the schema before it describes all
                    // of them.
                    (None, None) if is_part(schema) => {}
                    // Every response field must be described, although clients must tolerate more fields.
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

/// Returns whether a schema refines the general tensor schema before it in `allOf`.
fn is_part(schema: &Value) -> bool {
    let properties = object(&schema["properties"]);
    let is_list = |name: &String| name == "inputs" || name == "outputs";
    schema.pointer("/properties/name/const").is_some() || properties.keys().all(is_list)
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

/// Checks that a response matches one of the described responses.
fn check_answer(description: &Value, operation: &Value, answer: &TestResponse, place: &str) {
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
            // The description of the region's path is used for registering.
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
        // For these operations, the example must equal the response.
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

/// Paths that only report that an extension is unsupported, or that repositories have no names. They exist
/// for Triton's clients and are not worth describing.
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

/// Every path has exactly the described methods, plus `HEAD` where it has `GET`. Other methods are rejected
/// with a list of the allowed ones. The router and the description cover the same paths.
#[tokio::test]
async fn every_path_has_the_methods_that_are_described() {
    let description = description();
    let app = app();
    let mut described: Vec<&String> = object(&description["paths"]).keys().collect();
    for path in oip_http::paths() {
        let filled = fill(path);
        let is_refused = ONLY_REFUSED.contains(&path);
        let mut found = Vec::new();
        let mut allowed = None;
        for method in [
            "GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "BREW",
        ] {
            let answer = send(&app, method.parse().unwrap(), &filled, Body::empty()).await;
            if answer.status == StatusCode::METHOD_NOT_ALLOWED {
                if method != "HEAD" {
                    assert!(answer.error().starts_with("Method Not Allowed"));
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
        // The header lists methods in the order of the route table.
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

/// All references resolve, and all components are referenced.
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
    // Security schemes are referenced by name.
    let schemes = object(&description["components"]["securitySchemes"]);
    let named = description["security"].as_array().unwrap();
    assert!(
        schemes
            .keys()
            .all(|scheme| named.iter().any(|one| one.get(scheme).is_some()))
    );
    for (kind, components) in object(&description["components"]) {
        if kind == "securitySchemes" {
            continue;
        }
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

/// Returns the served description with the ready models.
async fn served(app: &HttpService) -> Value {
    let answer = get(app, "/openapi.json").await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
    answer.json()
}

/// Models of every datatype and several shapes, in addition to the built-in `matrix`.
async fn app_with_models() -> HttpService {
    let app = app();
    let forms = ["", "_scalar", "_matrix"];
    let identities = oip_service::testing::datatypes().flat_map(|datatype| {
        let name = oip_service::testing::identity(datatype);
        forms.map(|form| format!("{name}{form}"))
    });
    for name in identities.chain(["nan".to_owned()]) {
        let load = format!("/v2/repository/models/{name}/load");
        assert_eq!(
            send(&app, Method::POST, &load, Body::empty()).await.status,
            StatusCode::OK
        );
    }
    app
}

/// Each model has its own path, with an example request that matches its schema and succeeds.
#[tokio::test]
async fn models_that_are_ready_are_described_with_examples_that_work() {
    let app = app_with_models().await;
    let description = served(&app).await;
    let models = operations(&description)
        .into_iter()
        .filter(|(_, _, operation)| operation["tags"][0].as_str().unwrap().starts_with("model "));
    let mut described = 0;
    for (path, method, operation) in models {
        described += 1;
        let place = format!("{method} {path}");
        let answer = send(&app, method.clone(), &path, body(&operation)).await;
        assert_eq!(answer.status, StatusCode::OK, "{place}: {}", answer.text());
        check_answer(&description, &operation, &answer, &place);
        if method == Method::GET {
            let example = &operation["responses"]["200"]["content"]["application/json"]["example"];
            assert_eq!(&answer.json(), example, "{place}");
            continue;
        }
        let content = &operation["requestBody"]["content"]["application/json"];
        check(&description, &content["schema"], &content["example"], &place);
        // A request that the model rejects must not match its schema.
        let mut other = content["example"].clone();
        other["inputs"][0]["name"] = "another".into();
        let refused = send(&app, method, &path, Body::from(other.to_string())).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{place}");
        let schema = &content["schema"];
        let checked = std::panic::catch_unwind(|| check(&description, schema, &other, &place));
        assert!(checked.is_err(), "{place} takes another input");
    }
    assert_eq!(described, 2 * (14 * 3 + 2));
    assert!(description["paths"]["/v2/models/loading/infer"].is_null());
}

/// The generic examples, filled in with a loaded model, succeed too.
#[tokio::test]
async fn general_operations_are_filled_with_a_model_that_is_there() {
    let app = app_with_models().await;
    let description = served(&app).await;
    let parameter = |name: &str| {
        let example = &description["components"]["parameters"][name]["example"];
        example.as_str().unwrap().to_owned()
    };
    let (model, version) = (parameter("model"), parameter("version"));
    let mut sent = 0;
    for (path, methods) in object(&description["paths"]) {
        // Operations on shared memory are not sent: a client must fill in its own region.
        let is_sent = path.contains("{model}") && !path.contains("versions");
        for (method, operation) in object(methods).iter().filter(|_| is_sent) {
            sent += 1;
            let path = path.replace("{model}", &model).replace("{version}", &version);
            let answer = send(
                &app,
                method.to_uppercase().parse().unwrap(),
                &path,
                body(operation),
            )
            .await;
            assert_eq!(answer.status, StatusCode::OK, "{path}: {}", answer.text());
        }
    }
    assert!(sent > 10);
    // If the only model has versions, the examples name one of them.
    let only_matrix = served(&self::app()).await;
    let parameters = &only_matrix["components"]["parameters"];
    assert_eq!(
        [&parameters["model"]["example"], &parameters["version"]["example"]],
        ["matrix", "2"]
    );
    let infer = &only_matrix["paths"]["/v2/models/{model}/versions/{version}/infer"]["post"];
    let answer = send(
        &self::app(),
        Method::POST,
        "/v2/models/matrix/versions/2/infer",
        body(infer),
    )
    .await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
}

/// A service with 500 models that have 1000 inputs and 1000 outputs each.
struct WideModels;

impl InferenceService for WideModels {
    fn server_metadata(&self) -> ServerMetadata {
        ServerMetadata::new("wide", "1")
    }

    fn readiness(&self) -> Readiness {
        Readiness::Ready
    }

    fn model_metadata(&self, model: ModelRef<'_>) -> Result<Arc<ModelMetadata>, ServiceError> {
        let tensors = |dims: &[i64]| -> Vec<TensorMetadata> {
            let names = (0..1000).map(|number| format!("{{tensor}} {number}"));
            names
                .map(|name| TensorMetadata::new(name, DataType::FP32, dims).optional())
                .collect()
        };
        let inputs = tensors(&[1, 3, 224, 224]);
        Ok(Arc::new(ModelMetadata::new(
            model.name(),
            "test_test",
            inputs,
            tensors(&[-1]),
        )))
    }

    fn infer(
        &self,
        request: InferRequest,
        _: RequestContext,
    ) -> BoxFuture<'_, Result<InferResponse, ServiceError>> {
        let error = ServiceError::invalid(request.model().to_string());
        Box::pin(async { Err(error) })
    }

    fn repository(&self) -> Option<&dyn ModelRepository> {
        Some(self)
    }
}

impl ModelRepository for WideModels {
    fn index(&self) -> Vec<ModelIndexEntry> {
        let entry = |number: usize| ModelIndexEntry {
            name: format!("a {{model}} \u{fc} {number:03}"),
            version: Some("1".into()),
            state: Some(ModelState::Ready),
            reason: String::new(),
        };
        (0..500).map(entry).collect()
    }

    fn load(&self, _: ModelRef<'_>, _: LoadOptions) -> BoxFuture<'_, Result<(), ServiceError>> {
        Box::pin(async { Ok(()) })
    }

    fn unload(&self, _: ModelRef<'_>, _: UnloadOptions) -> BoxFuture<'_, Result<(), ServiceError>> {
        Box::pin(async { Ok(()) })
    }
}

#[tokio::test]
async fn many_models_many_tensors_and_large_ones_keep_the_description_small() {
    let app = oip_http::service(Arc::new(WideModels), HttpConfig::default());
    let answer = get(&app, "/openapi.json").await;
    assert!(answer.text().len() < 2 << 20, "{} bytes", answer.text().len());
    let description = answer.json();
    assert!(
        description["info"]["description"]
            .as_str()
            .unwrap()
            .contains("more models than the 64")
    );
    let path = "/v2/models/a%20%7Bmodel%7D%20%C3%BC%20000";
    let content =
        &description["paths"][format!("{path}/infer")]["post"]["requestBody"]["content"]["application/json"];
    // The description gives the example's shape instead of 150,528 zeros.
    assert!(content["example"].is_null());
    let inputs = &content["schema"]["allOf"][1]["properties"]["inputs"]["items"]["anyOf"];
    assert_eq!(inputs.as_array().unwrap().len(), 17);
    assert_eq!(
        inputs[0]["properties"]["shape"]["examples"][0],
        json!([1, 3, 224, 224])
    );
    assert!(inputs[1]["properties"]["shape"]["examples"].is_null());
    let about = &description["paths"][path]["get"]["responses"]["200"]["content"]["application/json"];
    assert!(about["schema"].is_object() && about["example"].is_null());
    // Requests to this path reach the model.
    assert_eq!(get(&app, path).await.json()["name"], "a {model} \u{fc} 000");
}

/// The description shows a client only the models that the client may see.
#[tokio::test]
async fn the_description_shows_a_client_its_own_models() {
    struct Only(&'static str);
    impl Rights for Only {
        fn check_model(&self, model: &str) -> Result<(), ServiceError> {
            match model == self.0 {
                true => Ok(()),
                false => Err(ServiceError::new(ErrorCode::PermissionDenied, "not yours")),
            }
        }
    }
    let app = app_with_models().await;
    let ask = async |only: &'static str| {
        let mut request = Request::get("/openapi.json")
            .header("host", "x")
            .body(Body::empty())
            .unwrap();
        request.extensions_mut().insert(Grant::new(Only(only)));
        call(&app, request).await.text()
    };
    let matrix = ask("matrix").await;
    assert!(matrix.contains("/v2/models/matrix/infer") && !matrix.contains("identity_fp32"));
    let none = ask("secret").await;
    assert!(!none.contains("/v2/models/matrix") && !none.contains("identity_fp32"));
}

/// The description counts toward the budget until the client has read it.
#[tokio::test]
async fn the_description_is_charged_until_it_is_sent() {
    let config = HttpConfig::default();
    let budget = config.budget.clone();
    let (app, _) = app_with(config);
    let request = Request::get("/openapi.json")
        .header("host", "x")
        .body(Body::empty())
        .unwrap();
    let response = app.oneshot(request).await.unwrap();
    let length = response.body().size_hint().exact().unwrap();
    assert_eq!(budget.used(), length);
    drop(response);
    assert_eq!(budget.used(), 0);
}
