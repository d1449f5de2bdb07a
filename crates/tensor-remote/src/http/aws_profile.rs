//! Reads a profile from the files that `aws configure` writes, `~/.aws/credentials` and `~/.aws/config`.

use std::{
    collections::BTreeMap,
    fmt,
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
};

use fmt_core::{Error, ErrorKind};

/// Keys, region and endpoint of an AWS profile.
///
/// `AWS_PROFILE` names the profile (default `default`); `AWS_SHARED_CREDENTIALS_FILE` and `AWS_CONFIG_FILE`
/// replace `~/.aws/credentials` and `~/.aws/config`. If both files have keys, the credentials file takes
/// precedence. Missing files count as empty. Unreadable files in the home directory also count as empty,
/// unless a variable names the file or the profile. Supported settings are `aws_access_key_id`,
/// `aws_secret_access_key`, `aws_session_token`, `region` and `endpoint_url`. Other credential sources (SSO,
/// assumed roles, processes) are not supported: see [`check_means`](Self::check_means).
///
/// ```
/// use tensor_remote::AwsProfile;
///
/// let folder = std::env::temp_dir().join(format!("aws-profile-{}", std::process::id()));
/// std::fs::create_dir_all(&folder)?;
/// let file = folder.join("config");
/// std::fs::write(&file, "[profile shop]\nregion = eu-west-1\naws_access_key_id = id\naws_secret_access_key = secret\n")?;
/// let profile = AwsProfile::read(&|name| match name {
///     "AWS_CONFIG_FILE" => Some(file.display().to_string()),
///     "AWS_PROFILE" => Some("shop".to_owned()),
///     _ => None,
/// })?;
/// assert_eq!(profile.region(), Some("eu-west-1"));
/// assert_eq!(profile.keys().map(|keys| keys.id), Some("id"));
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Default)]
pub struct AwsProfile {
    name: String,
    settings: BTreeMap<String, String>,
}

/// The keys of a profile.
#[derive(Clone, Copy)]
pub struct AwsKeys<'p> {
    /// The access key id.
    pub id: &'p str,
    /// The secret access key.
    pub secret: &'p str,
    /// The session token, for temporary keys.
    pub session: Option<&'p str>,
}

/// Maximum file size in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// Settings that select an unsupported credential source, each with the name of the source for messages.
const OTHER_MEANS: [(&str, &str); 6] = [
    ("sso_session", "SSO"),
    ("sso_start_url", "SSO"),
    ("login_session", "a login"),
    ("credential_process", "a process"),
    ("role_arn", "a role to assume"),
    ("web_identity_token_file", "a web identity"),
];

impl AwsProfile {
    /// Reads the profile that the environment names.
    ///
    /// # Errors
    /// When a file named by a variable (or any file, if a variable names the profile) exists and is
    /// unreadable, when a line is malformed, when the profile that `AWS_PROFILE` names does not exist, and
    /// when one of the two keys is missing.
    pub fn read(variable: &dyn Fn(&str) -> Option<String>) -> Result<Self, Error> {
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        let home = variable("HOME").or_else(|| variable("USERPROFILE"));
        let file = |name: &str, usual: &str| {
            let named = variable(name).map(PathBuf::from);
            named.or_else(|| Some(Path::new(home.as_ref()?).join(".aws").join(usual)))
        };
        let credentials = file("AWS_SHARED_CREDENTIALS_FILE", "credentials");
        let config = file("AWS_CONFIG_FILE", "config");
        let named = variable("AWS_PROFILE");
        let is_named = |name: &str| named.is_some() || variable(name).is_some();
        let is_needed = [
            is_named("AWS_CONFIG_FILE"),
            is_named("AWS_SHARED_CREDENTIALS_FILE"),
        ];
        let name = named.as_deref().unwrap_or("default");
        let mut found = false;
        let mut settings = BTreeMap::new();
        // Later sections take precedence.
        let in_config = [
            Some(name).filter(|name| *name == "default").map(str::to_owned),
            Some(format!("profile {name}")),
        ];
        for ((path, sections), is_needed) in [
            (&config, &in_config[..]),
            (&credentials, &[Some(name.to_owned())]),
        ]
        .into_iter()
        .zip(is_needed)
        {
            let Some(path) = path else { continue };
            let text = text_of(path, is_needed)?;
            for section in sections.iter().flatten() {
                if let Some(more) = section_of(path, &text, section)? {
                    found = true;
                    // Keys from one file are never combined with a session token from the other.
                    if more.contains_key(KEY_ID) {
                        settings.retain(|key: &String, _| ![KEY_ID, SECRET, SESSION].contains(&key.as_str()));
                    }
                    settings.extend(more);
                }
            }
        }
        if let (Some(name), false) = (&named, found) {
            return Err(no_profile(name, &[credentials, config]));
        }
        let profile = Self {
            name: name.to_owned(),
            settings,
        };
        profile.check_keys()?;
        Ok(profile)
    }

    /// Checks that the profile has both keys or neither.
    fn check_keys(&self) -> Result<(), Error> {
        let (there, missing) = match (self.get(KEY_ID), self.get(SECRET)) {
            (Some(_), None) => (KEY_ID, SECRET),
            (None, Some(_)) => (SECRET, KEY_ID),
            _ => return Ok(()),
        };
        let what = format!("the profile '{}' of AWS' files", self.name.escape_debug());
        Err(Error::new(ErrorKind::Malformed, what)
            .expected(format_args!("{missing} too"))
            .found(format_args!("{there} only")))
    }

    /// Returns the keys of the profile, if it has any.
    #[must_use]
    pub fn keys(&self) -> Option<AwsKeys<'_>> {
        Some(AwsKeys {
            id: self.get(KEY_ID)?,
            secret: self.get(SECRET)?,
            session: self.get(SESSION),
        })
    }

    /// Returns the profile's region.
    #[must_use]
    pub fn region(&self) -> Option<&str> {
        self.get("region")
    }

    /// Returns the endpoint URL, for stores other than Amazon's.
    #[must_use]
    pub fn endpoint(&self) -> Option<&str> {
        self.get("endpoint_url")
    }

    /// Checks that the profile has keys, or no credentials of any kind.
    ///
    /// # Errors
    /// When the profile was named explicitly and uses an unsupported credential source: SSO, an assumed role,
    /// a process. The profile `default` may use such a source, because it may not be meant for this program.
    pub fn check_means(&self, is_named: bool) -> Result<(), Error> {
        if !is_named || self.keys().is_some() {
            return Ok(());
        }
        let mut means = OTHER_MEANS.iter();
        let Some((_, means)) = means.find(|(setting, _)| self.get(setting).is_some()) else {
            return Ok(());
        };
        let name = self.name.escape_debug();
        let expected = format!(
            "keys in AWS' files, or by variables: aws configure export-credentials --profile '{name}' --format env"
        );
        let error = Error::new(
            ErrorKind::Unsupported,
            format!("the profile '{name}' (AWS_PROFILE)"),
        );
        Err(error
            .expected(expected)
            .found(format_args!("credentials by {means}, which are not followed")))
    }

    fn get(&self, setting: &str) -> Option<&str> {
        let value = self.settings.get(setting)?;
        Some(value.as_str()).filter(|value| !value.is_empty())
    }
}

const KEY_ID: &str = "aws_access_key_id";
const SECRET: &str = "aws_secret_access_key";
const SESSION: &str = "aws_session_token";

impl fmt::Debug for AwsProfile {
    /// Writes the profile without its keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AwsProfile")
            .field("name", &self.name)
            .field("has_keys", &self.keys().is_some())
            .field("region", &self.region())
            .finish_non_exhaustive()
    }
}

/// Returns the text of a file. The text is empty if the file does not exist, or if the file is unreadable and
/// not needed (`is_needed`).
fn text_of(path: &Path, is_needed: bool) -> Result<String, Error> {
    let is_left_out = |error: &io::Error| match error.kind() {
        io::ErrorKind::NotFound => true,
        io::ErrorKind::PermissionDenied | io::ErrorKind::NotADirectory => !is_needed,
        _ => false,
    };
    let what = || path.display().to_string();
    let wrong = |found: &str| {
        let error = Error::new(ErrorKind::Malformed, what());
        Err(error.expected("a text file of at most 1 MiB").found(found))
    };
    match fs::metadata(path) {
        Err(error) if is_left_out(&error) => return Ok(String::new()),
        // Opening a named pipe would block until it has a writer.
        Ok(metadata) if !metadata.is_file() => return wrong("no file"),
        _ => {}
    }
    let mut text = Vec::new();
    match File::open(path).and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut text)) {
        Err(error) if is_left_out(&error) => return Ok(String::new()),
        read => read.map_err(|error| Error::io(what(), error))?,
    };
    if text.len() as u64 > MAX_BYTES {
        return wrong("more");
    }
    String::from_utf8(text).or_else(|_| wrong("other bytes"))
}

/// Returns the error for a profile that none of the files defines.
fn no_profile(name: &str, files: &[Option<PathBuf>; 2]) -> Error {
    let paths: Vec<String> = files
        .iter()
        .flatten()
        .map(|path| path.display().to_string())
        .collect();
    let what = format!("the profile '{}' (AWS_PROFILE)", name.escape_debug());
    let places = match paths.is_empty() {
        true => "no file, since there is no HOME".to_owned(),
        false => format!("none in {}", paths.join(" and ")),
    };
    Error::new(ErrorKind::Malformed, what)
        .expected("a section of its name")
        .found(places)
}

/// Parses the settings of a section, if it exists. The whole file must be well-formed.
fn section_of(path: &Path, text: &str, wanted: &str) -> Result<Option<BTreeMap<String, String>>, Error> {
    let mut found: Option<BTreeMap<String, String>> = None;
    let (mut is_in, mut has_section, mut has_setting) = (false, false, false);
    for (index, line) in text.lines().enumerate() {
        // A line may contain a secret, so errors give only the line number.
        let malformed = |expected: &str| {
            let what = format!("{}, line {}", path.display(), index + 1);
            Err(Error::new(ErrorKind::Malformed, what).expected(expected))
        };
        let line = line.strip_prefix('\u{feff}').unwrap_or(line);
        if line.trim().is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if line.starts_with([' ', '\t']) {
            if line.trim_start().starts_with(['#', ';']) {
                continue;
            }
            // Indented lines are nested settings, such as those of `s3 =`.
            if has_setting {
                continue;
            }
            return malformed("a section or a setting without blanks in front");
        }
        if let Some(rest) = line.strip_prefix('[') {
            let Some((name, behind)) = rest.split_once(']') else {
                return malformed("a section as [NAME]");
            };
            if !(behind.trim().is_empty() || behind.trim_start().starts_with(['#', ';'])) {
                return malformed("nothing after a section");
            }
            let words: Vec<&str> = name.split_whitespace().collect();
            let name = words.join(" ").replace(['"', '\''], "");
            (is_in, has_section, has_setting) = (name == wanted, true, false);
            if is_in {
                found.get_or_insert_default();
            }
            continue;
        }
        let Some((setting, value)) = line
            .split_once('=')
            .filter(|(setting, _)| !setting.trim().is_empty())
        else {
            return malformed("NAME = VALUE");
        };
        if !has_section {
            return malformed("a section before settings, such as [default]");
        }
        has_setting = true;
        if let (true, Some(settings)) = (is_in, &mut found) {
            let comment = [" #", " ;", "\t#", "\t;"]
                .iter()
                .filter_map(|mark| value.find(mark))
                .min();
            let value = value[..comment.unwrap_or(value.len())].trim();
            settings.insert(setting.trim().to_ascii_lowercase(), value.to_owned());
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Home(tempfile::TempDir);

    impl Home {
        fn new(config: &str, credentials: &str) -> Self {
            let home = tempfile::tempdir().unwrap();
            fs::create_dir(home.path().join(".aws")).unwrap();
            fs::write(home.path().join(".aws/config"), config).unwrap();
            fs::write(home.path().join(".aws/credentials"), credentials).unwrap();
            Self(home)
        }

        fn read(&self, more: &[(&str, &str)]) -> Result<AwsProfile, Error> {
            AwsProfile::read(&|name| match name {
                "HOME" => Some(self.0.path().display().to_string()),
                name => {
                    let found = more.iter().find(|(known, _)| *known == name);
                    found.map(|(_, value)| (*value).to_owned())
                }
            })
        }
    }

    type Keys<'p> = (&'p str, &'p str, Option<&'p str>);

    /// Returns keys, region and endpoint.
    fn shown(profile: &AwsProfile) -> (Option<Keys<'_>>, Option<&str>, Option<&str>) {
        let keys = profile.keys().map(|keys| (keys.id, keys.secret, keys.session));
        (keys, profile.region(), profile.endpoint())
    }

    const CONFIG: &str = "\u{feff}# by aws configure\n[default]\nregion = eu-central-1\noutput = json\ns3 =\n  region = not-this\n  \
                          max_concurrent_requests = 20\n\n[profile shop] ; two words\nRegion=eu-west-1 # here\nendpoint_url = \
                          https://s3.example.com:9000\naws_access_key_id = of-config\naws_secret_access_key = hidden\n\
                          aws_session_token = of-config\n[profile \"by sso\"]\nsso_session = corp\nregion = us-east-2\n[profile role]\n\
                          role_arn = arn:aws:iam::1:role/x\nsource_profile = default\n[sso-session corp]\nsso_region = us-east-1\n";
    const CREDENTIALS: &str = "[default]\naws_access_key_id = AKIA\naws_secret_access_key = a/b+c=d\n[shop]\n\
                               aws_access_key_id=shop-id\naws_secret_access_key=shop-secret\n";

    #[test]
    fn profiles_are_read_as_the_command_line_does() {
        let home = Home::new(CONFIG, CREDENTIALS);
        let default = home.read(&[]).unwrap();
        assert_eq!(
            shown(&default),
            (Some(("AKIA", "a/b+c=d", None)), Some("eu-central-1"), None)
        );
        let shop = home.read(&[("AWS_PROFILE", "shop")]).unwrap();
        // The keys come from the credentials file, without the session token in the other file.
        assert_eq!(
            shown(&shop),
            (
                Some(("shop-id", "shop-secret", None)),
                Some("eu-west-1"),
                Some("https://s3.example.com:9000")
            )
        );
        let of_config = [
            ("AWS_PROFILE", "shop"),
            ("AWS_SHARED_CREDENTIALS_FILE", "/nowhere"),
        ];
        let shop = home.read(&of_config).unwrap();
        assert_eq!(shop.keys().unwrap().session, Some("of-config"));
        assert!(!format!("{shop:?}").contains("hidden"));
        for (name, means) in [("by sso", "SSO"), ("role", "a role to assume")] {
            let other = home.read(&[("AWS_PROFILE", name)]).unwrap();
            assert!(other.keys().is_none() && other.check_means(false).is_ok());
            let error = other.check_means(true).unwrap_err().to_string();
            assert!(
                error.contains(&format!("found credentials by {means}, which are not followed")),
                "{error}"
            );
        }
        assert!(default.check_means(true).is_ok());
    }

    #[test]
    fn without_files_there_is_nothing() {
        let nothing = AwsProfile::read(&|_| None).unwrap();
        assert_eq!(shown(&nothing), (None, None, None));
        let home = Home::new("", "");
        assert_eq!(shown(&home.read(&[]).unwrap()), (None, None, None));
        // Files in the home directory may be unreadable, because a service may run with an arbitrary home
        // directory. Files that a variable names, and files that may contain an explicitly named profile,
        // must be readable.
        let device = [("HOME", "/dev/null")];
        let named = [device[0], ("AWS_PROFILE", "shop")];
        let read = |variables: &[(&str, &str)]| {
            let found = |name: &str| variables.iter().find(|(known, _)| *known == name);
            AwsProfile::read(&|name| found(name).map(|(_, value)| (*value).to_owned()))
        };
        assert_eq!(shown(&read(&device).unwrap()), (None, None, None));
        assert_eq!(read(&named).unwrap_err().kind(), ErrorKind::Io);
        assert_eq!(
            read(&[("AWS_CONFIG_FILE", "/dev/null/config")])
                .unwrap_err()
                .kind(),
            ErrorKind::Io
        );
        let error = home.read(&[("AWS_PROFILE", "shop")]).unwrap_err().to_string();
        assert!(
            error.starts_with(
                "the profile 'shop' (AWS_PROFILE): expected a section of its name, found none in "
            ) && error.contains(".aws/credentials and "),
            "{error}"
        );
    }

    #[test]
    fn what_is_malformed_is_told_without_what_stands_there() {
        for (credentials, expected) in [
            (
                "[default]\naws_secret_access_key hidden",
                "credentials, line 2: expected NAME = VALUE",
            ),
            (
                "aws_secret_access_key = hidden",
                "credentials, line 1: expected a section before settings",
            ),
            ("[default\n", "credentials, line 1: expected a section as [NAME]"),
            (
                "[default] hidden\n",
                "credentials, line 1: expected nothing after a section",
            ),
            (
                "[default]\n  aws_secret_access_key = hidden",
                "credentials, line 2: expected a section or a setting without",
            ),
            (
                "[default]\naws_secret_access_key = hidden",
                "the profile 'default' of AWS' files: expected aws_access_key_id too, found aws_secret_access_key only",
            ),
        ] {
            let error = Home::new("", credentials).read(&[]).unwrap_err().to_string();
            assert!(error.contains(expected) && !error.contains("hidden"), "{error}");
        }
        let home = Home::new("", "");
        let folder = home.0.path().display().to_string();
        let error = home
            .read(&[("AWS_CONFIG_FILE", &folder)])
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("expected a text file of at most 1 MiB, found no file"),
            "{error}"
        );
    }
}
