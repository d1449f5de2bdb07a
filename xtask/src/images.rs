//! Checks the image names in docs/deploy: no file may contain an invented address in a public registry. There
//! is no public image yet, so anybody could register such a name and decide what readers run.

use std::{fs, path::Path};

use anyhow::Result;

use crate::workspace;

/// Returns the lines of docs/deploy that name one of our images in a public registry.
pub(crate) fn invented() -> Result<Vec<String>> {
    let mut found = Vec::new();
    collect(&workspace::root().join("docs/deploy"), &mut found)?;
    found.sort();
    Ok(found)
}

fn collect(folder: &Path, found: &mut Vec<String>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, found)?;
            continue;
        }
        let name = workspace::display(&path);
        for (index, line) in fs::read_to_string(&path)?.lines().enumerate() {
            if let Some(image) = image(line).filter(|image| !is_ours_to_name(image)) {
                found.push(format!(
                    "{name}:{}: the image `{image}` is in a registry that anybody may hold; write localhost/NAME, or an address \
                     below example.com",
                    index + 1
                ));
            }
        }
    }
    Ok(())
}

/// Returns the image that a line of a manifest, values file or command names.
fn image(line: &str) -> Option<&str> {
    let line = line.trim().trim_start_matches(['#', '-', ' ']);
    let value = line
        .strip_prefix("image:")
        .or_else(|| line.strip_prefix("repository:"));
    let value = match value {
        Some(value) => value,
        None if line.contains(" build ") => line.split_once(" -t ").or(line.split_once(" --tag "))?.1,
        None if line.starts_with("docker run ") || line.starts_with("podman run ") => {
            line.rsplit_once(' ')?.1
        }
        None => return None,
    };
    // `image:` without a value starts a nested mapping.
    let value = value.split_whitespace().next()?;
    Some(value.trim_matches(['"', '\'']))
}

/// Returns whether docs/deploy may contain an image name. Empty and template values are filled in by users,
/// and nobody can register the accepted host names.
fn is_ours_to_name(image: &str) -> bool {
    let host = image.split('/').next().unwrap_or_default();
    let host = host.split(':').next().unwrap_or_default();
    image.is_empty()
        || image.starts_with("{{")
        || ["localhost", "example.com"].contains(&host)
        || host.ends_with(".example.com")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_of_ours_stand_in_no_registry() {
        let wrong = |line: &str| {
            image(line)
                .filter(|image| !is_ours_to_name(image))
                .map(str::to_owned)
        };
        for line in [
            "          image: localhost/oip-server:0.1.0",
            "  repository: \"\"",
            "image:",
            "  # Required: the image in your registry",
            "image: {{ include \"oip-server.image\" . | quote }}",
            "image: registry.example.com:5000/oip-server:1",
            "#   docker build -f docs/deploy/Dockerfile -t localhost/oip-server:0.1.0 .",
            "#   docker run --read-only -p 8080:8080 localhost/oip-server:0.1.0",
        ] {
            assert_eq!(wrong(line), None, "{line}");
        }
        for (line, name) in [
            ("image: shop/oip-server:0.1.0", "shop/oip-server:0.1.0"),
            ("  - image: \"oip-server\"", "oip-server"),
            ("  repository: ghcr.io/shop/server", "ghcr.io/shop/server"),
            ("# docker build -t shop/server .", "shop/server"),
            ("docker run -p 1:1 shop/server", "shop/server"),
            ("image: localhost.shop.io/server", "localhost.shop.io/server"),
        ] {
            assert_eq!(wrong(line).as_deref(), Some(name), "{line}");
        }
    }
}
