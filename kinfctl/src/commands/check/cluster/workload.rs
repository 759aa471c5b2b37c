//! The control service's Deployment, its rights, and its certificate.

use k8s_openapi::api::apps::v1::Deployment;

use super::CONTROL;
use super::needed::{Access, named, secrets_of};
use crate::commands::check::finding::{Findings, counted};
use crate::commands::check::service::expiry;
use crate::commands::check::world::{Cluster, Named, Right};

pub(super) fn judge(cluster: &Cluster, now: i64, findings: &mut Findings) {
    let deployments = match &cluster.deployments {
        Ok(deployments) => deployments,
        Err(reason) => {
            return findings.warning(
                CONTROL,
                format!("Deployments cannot be listed: {reason}"),
                "allow list on deployments.apps to whoever checks",
            );
        }
    };
    if deployments.is_empty() {
        findings.problem(
            CONTROL,
            "no Deployment of the control service is there",
            "install the chart; its Deployment has the labels app.kubernetes.io/part-of=kinference and app.kubernetes.io/component=control",
        );
    }
    for deployment in deployments {
        available(deployment, findings);
        for secret in secrets_of(deployment) {
            certificate(cluster, &secret, now, findings);
        }
    }
    rights(&cluster.rights, findings);
}

fn available(deployment: &Deployment, findings: &mut Findings) {
    let wanted = deployment.spec.replicas.unwrap_or(1);
    let status = deployment.status.as_ref();
    let available = status.and_then(|status| status.available_replicas).unwrap_or(0);
    let name = named(deployment);
    if wanted == 0 {
        return findings.problem(CONTROL, format!("Deployment {name} is scaled to 0"), "kubectl scale --replicas=1");
    }
    let message = format!("Deployment {name}: {available} of {} available", counted(wanted as usize, "replica"));
    if available >= wanted {
        return findings.ok(CONTROL, message);
    }
    let conditions = status.iter().flat_map(|status| status.conditions.iter().flatten());
    let why: Vec<&str> = conditions
        .filter(|condition| {
            condition.status.as_deref() != Some("True") || condition.type_.as_deref() == Some("ReplicaFailure")
        })
        .filter_map(|condition| condition.message.as_deref())
        .collect();
    let hint = match why.as_slice() {
        [] => format!("kubectl -n {} describe pods says why", name.namespace),
        why => why.join(" "),
    };
    if available == 0 {
        findings.problem(CONTROL, message, hint);
    } else {
        findings.warning(CONTROL, message, hint);
    }
}

fn certificate(cluster: &Cluster, secret: &Named, now: i64, findings: &mut Findings) {
    match cluster.secrets.get(secret) {
        Some(Ok(None)) => findings.problem(
            CONTROL,
            format!("Secret {secret} is mounted and does not exist"),
            "by tls.mode of the chart: `helm upgrade` makes it (generate), cert-manager (see its Certificate), or you (secret)",
        ),
        Some(Ok(Some(facts))) => {
            if let Some(expires) = facts.certificate_expires {
                expiry(CONTROL, &format!("the certificate in Secret {secret}"), expires, now, findings);
            }
        }
        Some(Err(reason)) => findings.warning(
            CONTROL,
            format!("Secret {secret} cannot be looked at: {reason}"),
            "allow get on it to whoever checks; its values are not shown",
        ),
        None => {}
    }
}

fn rights(rights: &[Right], findings: &mut Findings) {
    let mut allowed = 0;
    let mut unknown = None;
    for right in rights {
        match &right.allowed {
            Ok(true) => allowed += 1,
            Ok(false) => findings.problem(
                CONTROL,
                format!("service account {} may not {}", right.account, said(right)),
                "install the chart's RBAC, or add the rule to the role of this account",
            ),
            Err(reason) => unknown = Some(reason),
        }
    }
    if let Some(reason) = unknown {
        findings.warning(
            CONTROL,
            format!("the rights of its service account cannot be asked for: {reason}"),
            "allow create on subjectaccessreviews.authorization.k8s.io to whoever checks",
        );
    } else if allowed > 0 && allowed == rights.len() {
        findings.ok(CONTROL, format!("its service account has the {} that it needs", counted(allowed, "right")));
    }
}

fn said(right: &Right) -> String {
    let Access { verb, group, resource, name, namespace } = &right.access;
    let group = if group.is_empty() { String::new() } else { format!(".{group}") };
    let name = name.as_ref().map(|name| format!(" {name}")).unwrap_or_default();
    format!("{verb} {resource}{group}{name} in namespace {namespace}")
}
