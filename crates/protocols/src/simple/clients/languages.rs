//! The languages of generated clients.

use super::notation::Notation;

/// The API that a client calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClientApi {
    /// Simple TensorFlow Serving's `POST /`.
    Simple,
    /// TensorFlow Serving's REST API.
    Rest,
    /// TensorFlow Serving's gRPC.
    Grpc,
    /// SageMaker's service.
    Sagemaker,
    /// None: only the data of a request to `POST /`.
    Data,
}

/// The notation of the request's body in the source code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyForm {
    /// A literal of the language, or JSON in a raw string.
    Literal(Notation),
    /// JSON in a string whose quotes and backslashes are escaped with a backslash.
    Escaped,
    /// JSON in one or several Java text blocks, whose backslashes are escaped.
    TextBlocks,
    /// JSON in a string whose quotes are doubled.
    DoubledQuotes,
}

/// A language.
#[derive(Debug)]
pub(super) struct ClientLanguage {
    /// Its name in requests.
    pub(super) id: &'static str,
    /// Its other names in requests, in lower case.
    pub(super) aliases: &'static [&'static str],
    /// Its display name.
    pub(super) name: &'static str,
    /// The variants of its clients; the first is the default.
    pub(super) variants: &'static [ClientVariant],
}

/// A variant of a client.
#[derive(Debug)]
pub(super) struct ClientVariant {
    /// Its name in requests.
    pub(super) id: &'static str,
    /// Its display name.
    pub(super) name: &'static str,
    /// The suggested file name.
    pub(super) file: &'static str,
    /// The command that installs its dependencies; may be empty.
    pub(super) install: &'static str,
    /// The command that runs it; may be empty.
    pub(super) run: &'static str,
    /// The start of a comment line.
    pub(super) comment: &'static str,
    /// The comment on how to configure the certificate authority of the server.
    pub(super) trust: &'static [&'static str],
    pub(super) api: ClientApi,
    pub(super) form: BodyForm,
    pub(super) template: &'static str,
}

const JSON: BodyForm = BodyForm::Literal(Notation::Json);
const PYTHON: BodyForm = BodyForm::Literal(Notation::Python);
const JAVASCRIPT: BodyForm = BodyForm::Literal(Notation::JavaScript);

const TRUST: &[&str] =
    &["TENSORSERVE_CA may name a PEM file of the authority that signed the server's certificate."];

const CURL: ClientVariant = ClientVariant {
    id: "curl",
    name: "curl",
    file: "client.sh",
    install: "",
    run: "bash client.sh",
    comment: "#",
    trust: TRUST,
    api: ClientApi::Simple,
    form: JSON,
    template: include_str!("templates/bash.txt"),
};

const REQUESTS: ClientVariant = ClientVariant {
    id: "requests",
    name: "requests",
    file: "client.py",
    install: "pip install requests",
    run: "python3 client.py",
    comment: "#",
    trust: TRUST,
    api: ClientApi::Simple,
    form: PYTHON,
    template: include_str!("templates/python.txt"),
};

/// Every language, each with at least one variant.
pub(super) const LANGUAGES: &[ClientLanguage] = &[
    ClientLanguage {
        id: "json",
        aliases: &[],
        name: "JSON",
        variants: &[ClientVariant {
            id: "data",
            name: "the request's data",
            file: "request.json",
            install: "",
            run: "",
            comment: "",
            trust: &[],
            api: ClientApi::Data,
            form: JSON,
            template: "«body»\n",
        }],
    },
    ClientLanguage {
        id: "bash",
        aliases: &["curl", "sh", "shell"],
        name: "Bash",
        variants: &[CURL],
    },
    ClientLanguage {
        id: "python",
        aliases: &["py", "python3"],
        name: "Python",
        variants: &[
            REQUESTS,
            ClientVariant {
                id: "rest",
                name: "TensorFlow Serving REST, with requests",
                api: ClientApi::Rest,
                template: include_str!("templates/python_rest.txt"),
                ..REQUESTS
            },
            ClientVariant {
                id: "grpc",
                name: "TensorFlow Serving gRPC, with tensorflow-serving-api",
                install: "pip install tensorflow-serving-api",
                api: ClientApi::Grpc,
                template: include_str!("templates/python_grpc.txt"),
                ..REQUESTS
            },
            ClientVariant {
                id: "boto3",
                name: "SageMaker, with boto3",
                install: "pip install boto3",
                api: ClientApi::Sagemaker,
                template: include_str!("templates/python_boto3.txt"),
                ..REQUESTS
            },
        ],
    },
    ClientLanguage {
        id: "javascript",
        aliases: &["js", "node", "nodejs"],
        name: "JavaScript",
        variants: &[
            ClientVariant {
                id: "node",
                name: "Node, with fetch",
                file: "client.js",
                install: "",
                run: "node client.js",
                comment: "//",
                trust: &[
                    "Node takes the authority that signed the server's certificate from the PEM file",
                    "that NODE_EXTRA_CA_CERTS names: NODE_EXTRA_CA_CERTS=$TENSORSERVE_CA node client.js",
                ],
                api: ClientApi::Simple,
                form: JAVASCRIPT,
                template: include_str!("templates/javascript.txt"),
            },
            ClientVariant {
                id: "browser",
                name: "a page for a browser",
                file: "client.html",
                install: "",
                run: "",
                comment: "",
                trust: &[],
                api: ClientApi::Simple,
                form: JAVASCRIPT,
                template: include_str!("templates/javascript_browser.txt"),
            },
        ],
    },
    ClientLanguage {
        id: "golang",
        aliases: &["go"],
        name: "Go",
        variants: &[ClientVariant {
            id: "net/http",
            name: "net/http",
            file: "client.go",
            run: "go run client.go",
            comment: "//",
            template: include_str!("templates/go.txt"),
            ..CURL
        }],
    },
    ClientLanguage {
        id: "ruby",
        aliases: &["rb"],
        name: "Ruby",
        variants: &[ClientVariant {
            id: "net/http",
            name: "Net::HTTP",
            file: "client.rb",
            run: "ruby client.rb",
            template: include_str!("templates/ruby.txt"),
            ..CURL
        }],
    },
    ClientLanguage {
        id: "php",
        aliases: &[],
        name: "PHP",
        variants: &[ClientVariant {
            file: "client.php",
            name: "the curl extension",
            run: "php client.php",
            comment: "//",
            template: include_str!("templates/php.txt"),
            ..CURL
        }],
    },
    ClientLanguage {
        id: "perl",
        aliases: &["pl"],
        name: "Perl",
        variants: &[ClientVariant {
            id: "http-tiny",
            name: "HTTP::Tiny",
            file: "client.pl",
            run: "perl client.pl",
            template: include_str!("templates/perl.txt"),
            ..CURL
        }],
    },
    ClientLanguage {
        id: "lua",
        aliases: &[],
        name: "Lua",
        variants: &[ClientVariant {
            id: "lua-http",
            name: "lua-http",
            file: "client.lua",
            install: "luarocks install http",
            run: "lua client.lua",
            comment: "--",
            template: include_str!("templates/lua.txt"),
            ..CURL
        }],
    },
    ClientLanguage {
        id: "erlang",
        aliases: &["erl"],
        name: "Erlang",
        variants: &[ClientVariant {
            id: "httpc",
            name: "httpc",
            file: "client.escript",
            run: "escript client.escript",
            comment: "%%",
            form: BodyForm::Escaped,
            template: include_str!("templates/erlang.txt"),
            ..CURL
        }],
    },
    ClientLanguage {
        id: "r",
        aliases: &[],
        name: "R",
        variants: &[ClientVariant {
            id: "httr2",
            name: "httr2",
            file: "client.R",
            install: "Rscript -e 'install.packages(\"httr2\")'",
            run: "Rscript client.R",
            template: include_str!("templates/r.txt"),
            ..CURL
        }],
    },
    ClientLanguage {
        id: "java",
        aliases: &[],
        name: "Java",
        variants: &[ClientVariant {
            id: "java.net.http",
            name: "java.net.http",
            file: "Client.java",
            run: "java Client.java",
            comment: "//",
            form: BodyForm::TextBlocks,
            template: include_str!("templates/java.txt"),
            ..CURL
        }],
    },
    ClientLanguage {
        id: "csharp",
        aliases: &["c#", "cs", "dotnet"],
        name: "C#",
        variants: &[ClientVariant {
            id: "httpclient",
            name: "HttpClient",
            file: "Client.cs",
            run: "dotnet run Client.cs",
            comment: "//",
            form: BodyForm::DoubledQuotes,
            template: include_str!("templates/csharp.txt"),
            ..CURL
        }],
    },
    ClientLanguage {
        id: "rust",
        aliases: &["rs"],
        name: "Rust",
        variants: &[ClientVariant {
            id: "ureq",
            name: "ureq",
            file: "main.rs",
            install: "cargo add ureq base64",
            run: "cargo run",
            comment: "//",
            template: include_str!("templates/rust.txt"),
            ..CURL
        }],
    },
    ClientLanguage {
        id: "swift",
        aliases: &[],
        name: "Swift",
        variants: &[ClientVariant {
            id: "urlsession",
            name: "URLSession",
            file: "client.swift",
            run: "swift client.swift",
            comment: "//",
            trust: &[
                "The authority that signed the server's certificate: on Linux from the PEM file that",
                "URLSessionCertificateAuthorityInfoFile names, on Apple's systems from the keychain.",
            ],
            template: include_str!("templates/swift.txt"),
            ..CURL
        }],
    },
];
