"""What a RayService may hold: names, types, `*` after what is required.  By docs/kuberay_fields.py.

Source: ray-project/kuberay, ray-operator/config/crd/bases/ray.io_rayservices.yaml at
feeaf72facab4881ba2b179248bb67315634e229 (Apache-2.0), version v1.
"""

import json

ROOT = "#7e388e"
TEXT = """
{"#016ee3": {"env": ["#ad3d63"], "image": "string", "imagePullPolicy": "string", "resources":
"#bcf266"}, "#039f07": {"name*": "string", "request": "string"}, "#05d605": {"args": ["string"],
"command": ["string"], "env": ["#ad3d63"], "envFrom": ["#22f52f"], "image": "string",
"imagePullPolicy": "string", "lifecycle": "#bf2887", "livenessProbe": "#b72607", "name*": "string",
"ports": ["#b78086"], "readinessProbe": "#b72607", "resizePolicy": ["#913224"], "resources":
"#bcf266", "restartPolicy": "string", "restartPolicyRules": ["#0a018a"], "securityContext":
"#80a7ae", "startupProbe": "#b72607", "stdin": "boolean", "stdinOnce": "boolean",
"terminationMessagePath": "string", "terminationMessagePolicy": "string", "tty": "boolean",
"volumeDevices": ["#d772de"], "volumeMounts": ["#a642e5"], "workingDir": "string"}, "#095689":
{"ipBlock": "#75dde2", "namespaceSelector": "#cdfbf3", "podSelector": "#cdfbf3"}, "#0a018a":
{"action*": "string", "exitCodes": "#bea109"}, "#0d0e85": {"hosts": ["string"], "secretName":
"string"}, "#0e50ad": {"fsType": "string", "readOnly": "boolean", "secretRef": "#5e32be",
"volumeName": "string", "volumeNamespace": "string"}, "#144971": {"hostnames": ["string"], "ip*":
"string"}, "#160956": {"chapAuthDiscovery": "boolean", "chapAuthSession": "boolean", "fsType":
"string", "initiatorName": "string", "iqn*": "string", "iscsiInterface": "string", "lun*":
"integer", "portals": ["string"], "readOnly": "boolean", "secretRef": "#5e32be", "targetPortal*":
"string"}, "#1c47d8": {"args": ["string"], "command": ["string"], "env": ["#ad3d63"], "envFrom":
["#22f52f"], "image": "string", "imagePullPolicy": "string", "lifecycle": "#bf2887",
"livenessProbe": "#b72607", "name*": "string", "ports": ["#b78086"], "readinessProbe": "#b72607",
"resizePolicy": ["#913224"], "resources": "#bcf266", "restartPolicy": "string",
"restartPolicyRules": ["#0a018a"], "securityContext": "#80a7ae", "startupProbe": "#b72607", "stdin":
"boolean", "stdinOnce": "boolean", "targetContainerName": "string", "terminationMessagePath":
"string", "terminationMessagePolicy": "string", "tty": "boolean", "volumeDevices": ["#d772de"],
"volumeMounts": ["#a642e5"], "workingDir": "string"}, "#1f58e6": {"defaultMode": "integer", "items":
["#a942c0"], "optional": "boolean", "secretName": "string"}, "#1fa009": {"podIP": "string",
"podName": "string", "serviceIP": "string", "serviceName": "string"}, "#228a21": {"items":
["#78fbd3"]}, "#22cac1": {"egressRules": ["#27886b"], "ingressRules": ["#c5a105"]}, "#22f52f":
{"configMapRef": "#997e27", "prefix": "string", "secretRef": "#997e27"}, "#245d59": {"limits": {"":
"int-or-string"}, "requests": {"": "int-or-string"}}, "#26ead5": {"apiGroup": "string", "kind*":
"string", "name*": "string"}, "#27886b": {"ports": ["#c33606"], "to": ["#095689"]}, "#286dae":
{"timeoutSeconds": "integer"}, "#287d06": {"host": "string", "port*": "int-or-string"}, "#2880b2":
{"group": "string", "readOnly": "boolean", "registry*": "string", "tenant": "string", "user":
"string", "volume*": "string"}, "#2ab488": {"podAffinityTerm*": "#4244eb", "weight*": "integer"},
"#2f3dca": {"activeServiceStatus": "#ecfdc5", "conditions": ["#c4ff7c"], "lastUpdateTime": "string",
"numServeEndpoints": "integer", "observedGeneration": "integer", "pendingServiceStatus": "#ecfdc5",
"serviceStatus": "string"}, "#3074e3": {"volumeClaimTemplate": "#6a89d0"}, "#323ce7":
{"preference*": "#fa321e", "weight*": "integer"}, "#326e6e": {"configMapKeyRef": "#50cae1",
"fieldRef": "#d1ad9a", "fileKeyRef": "#6d5d66", "resourceFieldRef": "#d7460e", "secretKeyRef":
"#50cae1"}, "#3acdca": {"accessModes": ["string"], "dataSource": "#26ead5", "dataSourceRef":
"#b79d0a", "resources": "#245d59", "selector": "#cdfbf3", "storageClassName": "string",
"volumeAttributesClassName": "string", "volumeMode": "string", "volumeName": "string"}, "#3c69ed":
{"add": ["string"], "drop": ["string"]}, "#3ca9b9": {"accessModes": ["string"], "claimName":
"string", "deletionPolicy": "DeleteWithCluster|Retain", "size": "int-or-string", "storageClassName":
"string", "subPath": "string"}, "#3cf6c2": {"seconds*": "integer"}, "#3d309c": {"name*": "string"},
"#4244eb": {"labelSelector": "#cdfbf3", "matchLabelKeys": ["string"], "mismatchLabelKeys":
["string"], "namespaceSelector": "#cdfbf3", "namespaces": ["string"], "topologyKey*": "string"},
"#432f78": {"egressRules": ["#27886b"], "groupName*": "string", "ingressRules": ["#c5a105"]},
"#4513e9": {"path*": "string", "type": "string"}, "#47e179": {"head": "#22cac1", "mode":
"DenyAll|DenyAllIngress|DenyAllEgress", "worker": "#22cac1", "workerGroups": ["#432f78"]},
"#48501f": {"hostname": "string", "ip": "string", "ipMode": "string", "ports": ["#a3e6cc"]},
"#4867ae": {"clusterTrustBundle": "#c64821", "configMap": "#bb60d2", "downwardAPI": "#228a21",
"podCertificate": "#4c1a71", "secret": "#bb60d2", "serviceAccountToken": "#b5680d"}, "#497e57":
{"driver*": "string", "fsType": "string", "nodePublishSecretRef": "#5e32be", "readOnly": "boolean",
"volumeAttributes": {"": "string"}}, "#4c1a71": {"certificateChainPath": "string",
"credentialBundlePath": "string", "keyPath": "string", "keyType*": "string", "maxExpirationSeconds":
"integer", "signerName*": "string", "userAnnotations": {"": "string"}}, "#502ce3": {"fsType":
"string", "readOnly": "boolean", "secretRef": "#5e32be", "volumeID*": "string"}, "#503771":
{"appArmorProfile": "#b272c9", "fsGroup": "integer", "fsGroupChangePolicy": "string", "runAsGroup":
"integer", "runAsNonRoot": "boolean", "runAsUser": "integer", "seLinuxChangePolicy": "string",
"seLinuxOptions": "#bb0832", "seccompProfile": "#b272c9", "supplementalGroups": ["integer"],
"supplementalGroupsPolicy": "string", "sysctls": ["#f93c28"], "windowsOptions": "#5dfbcf"},
"#50cae1": {"key*": "string", "name": "string", "optional": "boolean"}, "#51e6fd": {"exec":
"#88f824", "httpGet": "#7d6bcb", "sleep": "#3cf6c2", "tcpSocket": "#287d06"}, "#5dfbcf":
{"gmsaCredentialSpec": "string", "gmsaCredentialSpecName": "string", "hostProcess": "boolean",
"runAsUserName": "string"}, "#5e32be": {"name": "string"}, "#600fce": {"fsType": "string", "pdID*":
"string"}, "#604ccc": {"appProtocol": "string", "name": "string", "nodePort": "integer", "port*":
"integer", "protocol": "string", "targetPort": "int-or-string"}, "#605bca": {"fsType": "string",
"gateway*": "string", "protectionDomain": "string", "readOnly": "boolean", "secretRef*": "#5e32be",
"sslEnabled": "boolean", "storageMode": "string", "storagePool": "string", "system*": "string",
"volumeName": "string"}, "#62399a": {"path*": "string", "readOnly": "boolean", "server*": "string"},
"#6261fd": {"datasetName": "string", "datasetUUID": "string"}, "#6358d4": {"fsType": "string",
"image*": "string", "keyring": "string", "monitors*": ["string"], "pool": "string", "readOnly":
"boolean", "secretRef": "#5e32be", "user": "string"}, "#6794a9": {"medium": "string", "sizeLimit":
"int-or-string"}, "#6a89d0": {"metadata": "#a6b185", "spec*": "#3acdca"}, "#6d5d66": {"key*":
"string", "optional": "boolean", "path*": "string", "volumeName*": "string"}, "#75dde2": {"cidr*":
"string", "except": ["string"]}, "#787480": {"name*": "string", "resourceClaimName": "string",
"resourceClaimTemplateName": "string"}, "#78fbd3": {"fieldRef": "#d1ad9a", "mode": "integer",
"path*": "string", "resourceFieldRef": "#d7460e"}, "#7d40b6":
{"preferredDuringSchedulingIgnoredDuringExecution": ["#323ce7"],
"requiredDuringSchedulingIgnoredDuringExecution": "#8ae5f3"}, "#7d6bcb": {"host": "string",
"httpHeaders": ["#f93c28"], "path": "string", "port*": "int-or-string", "scheme": "string"},
"#7db443": {"gatewayClassName*": "string", "intervalSeconds*": "integer", "maxSurgePercent":
"integer", "stepSizePercent*": "integer"}, "#7dfd14": {"conditions": ["#c4ff7c"], "loadBalancer":
"#9a0d88"}, "#7e388e": {"apiVersion": "string", "kind": "string", "metadata": "any", "spec":
"#d36760", "status": "#2f3dca"}, "#803cfc": {"authOptions": "#943e0f", "autoscalerOptions":
"#cd0fe6", "enableInTreeAutoscaling": "boolean", "gcsFaultToleranceOptions": "#9e862d",
"headGroupSpec*": "#f40a99", "headServiceAnnotations": {"": "string"}, "historyServerOptions":
"#ff556b", "managedBy": "string", "networkPolicy": "#47e179", "rayVersion": "string", "suspend":
"boolean", "tlsOptions": "#c4b7f0", "upgradeStrategy": "#b906a6", "workerGroupSpecs": ["#8ba42d"]},
"#80a7ae": {"allowPrivilegeEscalation": "boolean", "appArmorProfile": "#b272c9", "capabilities":
"#3c69ed", "privileged": "boolean", "procMount": "string", "readOnlyRootFilesystem": "boolean",
"runAsGroup": "integer", "runAsNonRoot": "boolean", "runAsUser": "integer", "seLinuxOptions":
"#bb0832", "seccompProfile": "#b272c9", "windowsOptions": "#5dfbcf"}, "#83e7b6": {"fsType":
"string", "partition": "integer", "readOnly": "boolean", "volumeID*": "string"}, "#87e840":
{"clientIP": "#286dae"}, "#88f824": {"command": ["string"]}, "#89ddaf": {"apiVersion": "string",
"kind": "string", "metadata": "#a6b185", "spec": "#8a931a", "status": "#7dfd14"}, "#8a931a":
{"allocateLoadBalancerNodePorts": "boolean", "clusterIP": "string", "clusterIPs": ["string"],
"externalIPs": ["string"], "externalName": "string", "externalTrafficPolicy": "string",
"healthCheckNodePort": "integer", "internalTrafficPolicy": "string", "ipFamilies": ["string"],
"ipFamilyPolicy": "string", "loadBalancerClass": "string", "loadBalancerIP": "string",
"loadBalancerSourceRanges": ["string"], "ports": ["#604ccc"], "publishNotReadyAddresses": "boolean",
"selector": {"": "string"}, "sessionAffinity": "string", "sessionAffinityConfig": "#87e840",
"trafficDistribution": "string", "type": "string"}, "#8ae5f3": {"nodeSelectorTerms*": ["#fa321e"]},
"#8ba42d": {"groupName*": "string", "idleTimeoutSeconds": "integer", "labels": {"": "string"},
"maxReplicas": "integer", "minReplicas": "integer", "numOfHosts": "integer", "priority": "integer",
"rayStartParams": {"": "string"}, "replicas": "integer", "resources": {"": "string"},
"scaleStrategy": "#dd4cc7", "suspend": "boolean", "template*": "#a9ac5a"}, "#8fc4f2": {"monitors*":
["string"], "path": "string", "readOnly": "boolean", "secretFile": "string", "secretRef": "#5e32be",
"user": "string"}, "#913224": {"resourceName*": "string", "restartPolicy*": "string"}, "#943e0f":
{"enableK8sTokenAuth": "boolean", "mode": "disabled|token", "secretName": "string"}, "#997e27":
{"name": "string", "optional": "boolean"}, "#9a0d88": {"ingress": ["#48501f"]}, "#9e5e77":
{"fsType": "string", "lun": "integer", "readOnly": "boolean", "targetWWNs": ["string"], "wwids":
["string"]}, "#9e862d": {"backend": "redis|rocksdb", "externalStorageNamespace": "string",
"redisAddress": "string", "redisPassword": "#d75e7d", "redisUsername": "#d75e7d", "storage":
"#3ca9b9"}, "#a3e6cc": {"error*": "string", "port*": "integer", "protocol*": "string"}, "#a52966":
{"port*": "integer", "service": "string"}, "#a5393a": {"endpoints*": "string", "path*": "string",
"readOnly": "boolean"}, "#a5a1d4": {"driver*": "string", "fsType": "string", "options": {"":
"string"}, "readOnly": "boolean", "secretRef": "#5e32be"}, "#a642e5": {"mountPath*": "string",
"mountPropagation": "string", "name*": "string", "readOnly": "boolean", "recursiveReadOnly":
"string", "subPath": "string", "subPathExpr": "string"}, "#a6b185": {"annotations": {"": "string"},
"finalizers": ["string"], "labels": {"": "string"}, "name": "string", "namespace": "string"},
"#a800c9": {"defaultMode": "integer", "items": ["#78fbd3"]}, "#a942c0": {"key*": "string", "mode":
"integer", "path*": "string"}, "#a9ac5a": {"metadata": "#a6b185", "spec": "#e049d9"}, "#ad3d63":
{"name*": "string", "value": "string", "valueFrom": "#326e6e"}, "#ae7922": {"cachingMode": "string",
"diskName*": "string", "diskURI*": "string", "fsType": "string", "kind": "string", "readOnly":
"boolean"}, "#b272c9": {"localhostProfile": "string", "type*": "string"}, "#b29891":
{"awsElasticBlockStore": "#83e7b6", "azureDisk": "#ae7922", "azureFile": "#c4977f", "cephfs":
"#8fc4f2", "cinder": "#502ce3", "configMap": "#fcca6a", "csi": "#497e57", "downwardAPI": "#a800c9",
"emptyDir": "#6794a9", "ephemeral": "#3074e3", "fc": "#9e5e77", "flexVolume": "#a5a1d4", "flocker":
"#6261fd", "gcePersistentDisk": "#c08abc", "gitRepo": "#c8e5ec", "glusterfs": "#a5393a", "hostPath":
"#4513e9", "image": "#fb564f", "iscsi": "#160956", "name*": "string", "nfs": "#62399a",
"persistentVolumeClaim": "#cbcb96", "photonPersistentDisk": "#600fce", "portworxVolume": "#d4eaf3",
"projected": "#f9b45c", "quobyte": "#2880b2", "rbd": "#6358d4", "scaleIO": "#605bca", "secret":
"#1f58e6", "storageos": "#0e50ad", "vsphereVolume": "#ea2c30"}, "#b5680d": {"audience": "string",
"expirationSeconds": "integer", "path*": "string"}, "#b68007": {"labelSelector": "#cdfbf3",
"matchLabelKeys": ["string"], "maxSkew*": "integer", "minDomains": "integer", "nodeAffinityPolicy":
"string", "nodeTaintsPolicy": "string", "topologyKey*": "string", "whenUnsatisfiable*": "string"},
"#b6d36d": {"preferredDuringSchedulingIgnoredDuringExecution": ["#2ab488"],
"requiredDuringSchedulingIgnoredDuringExecution": ["#4244eb"]}, "#b72607": {"exec": "#88f824",
"failureThreshold": "integer", "grpc": "#a52966", "httpGet": "#7d6bcb", "initialDelaySeconds":
"integer", "periodSeconds": "integer", "successThreshold": "integer", "tcpSocket": "#287d06",
"terminationGracePeriodSeconds": "integer", "timeoutSeconds": "integer"}, "#b78086":
{"containerPort*": "integer", "hostIP": "string", "hostPort": "integer", "name": "string",
"protocol": "string"}, "#b79d0a": {"apiGroup": "string", "kind*": "string", "name*": "string",
"namespace": "string"}, "#b906a6": {"type": "Recreate|None"}, "#bb0832": {"level": "string", "role":
"string", "type": "string", "user": "string"}, "#bb60d2": {"items": ["#a942c0"], "name": "string",
"optional": "boolean"}, "#bc8d05": {"availableWorkerReplicas": "integer", "conditions": ["#c4ff7c"],
"desiredCPU": "int-or-string", "desiredGPU": "int-or-string", "desiredMemory": "int-or-string",
"desiredTPU": "int-or-string", "desiredWorkerReplicas": "integer", "endpoints": {"": "string"},
"head": "#1fa009", "lastUpdateTime": "string", "maxWorkerReplicas": "integer", "minWorkerReplicas":
"integer", "observedGeneration": "integer", "readyWorkerReplicas": "integer", "reason": "string",
"state": "string", "stateTransitionTimes": {"": "string"}}, "#bcf266": {"claims": ["#039f07"],
"limits": {"": "int-or-string"}, "requests": {"": "int-or-string"}}, "#bea109": {"operator*":
"string", "values": ["integer"]}, "#bf2887": {"postStart": "#51e6fd", "preStop": "#51e6fd",
"stopSignal": "string"}, "#c08abc": {"fsType": "string", "partition": "integer", "pdName*":
"string", "readOnly": "boolean"}, "#c33606": {"endPort": "integer", "port": "int-or-string",
"protocol": "string"}, "#c4977f": {"readOnly": "boolean", "secretName*": "string", "shareName*":
"string"}, "#c4b7f0": {"enabled": "boolean"}, "#c4ff7c": {"lastTransitionTime*": "string",
"message*": "string", "observedGeneration": "integer", "reason*": "string", "status*":
"True|False|Unknown", "type*": "string"}, "#c5a105": {"from": ["#095689"], "ports": ["#c33606"]},
"#c64821": {"labelSelector": "#cdfbf3", "name": "string", "optional": "boolean", "path*": "string",
"signerName": "string"}, "#c75a91": {"host": "string", "path": "string", "pathType":
"Exact|Prefix|ImplementationSpecific", "tls": ["#0d0e85"]}, "#c8e5ec": {"directory": "string",
"repository*": "string", "revision": "string"}, "#cbcb96": {"claimName*": "string", "readOnly":
"boolean"}, "#cd0fe6": {"args": ["string"], "command": ["string"], "env": ["#ad3d63"], "envFrom":
["#22f52f"], "idleTimeoutSeconds": "integer", "image": "string", "imagePullPolicy": "string",
"resources": "#bcf266", "securityContext": "#80a7ae", "upscalingMode":
"Default|Aggressive|Conservative", "version": "v1|v2", "volumeMounts": ["#a642e5"]}, "#cdfbf3":
{"matchExpressions": ["#dcbe2d"], "matchLabels": {"": "string"}}, "#d05cfe": {"podGroupName":
"string"}, "#d1ad9a": {"apiVersion": "string", "fieldPath*": "string"}, "#d36760":
{"deploymentUnhealthySecondThreshold": "integer", "excludeHeadPodFromServeSvc": "boolean",
"managedBy": "string", "rayClusterConfig*": "#803cfc", "rayClusterDeletionDelaySeconds": "integer",
"serveConfigV2": "string", "serveService": "#89ddaf", "serviceUnhealthySecondThreshold": "integer",
"suspend": "boolean", "upgradeStrategy": "#e08153"}, "#d4eaf3": {"fsType": "string", "readOnly":
"boolean", "volumeID*": "string"}, "#d70e0f": {"message": "string", "status": "string"}, "#d7460e":
{"containerName": "string", "divisor": "int-or-string", "resource*": "string"}, "#d75e7d": {"value":
"string", "valueFrom": "#326e6e"}, "#d772de": {"devicePath*": "string", "name*": "string"},
"#d9d423": {"effect": "string", "key": "string", "operator": "string", "tolerationSeconds":
"integer", "value": "string"}, "#db88a6": {"nodeAffinity": "#7d40b6", "podAffinity": "#b6d36d",
"podAntiAffinity": "#b6d36d"}, "#dcbe2d": {"key*": "string", "operator*": "string", "values":
["string"]}, "#dd4afe": {"name": "string", "value": "string"}, "#dd4cc7": {"workersToDelete":
["string"]}, "#e049d9": {"activeDeadlineSeconds": "integer", "affinity": "#db88a6",
"automountServiceAccountToken": "boolean", "containers*": ["#05d605"], "dnsConfig": "#fcaa84",
"dnsPolicy": "string", "enableServiceLinks": "boolean", "ephemeralContainers": ["#1c47d8"],
"hostAliases": ["#144971"], "hostIPC": "boolean", "hostNetwork": "boolean", "hostPID": "boolean",
"hostUsers": "boolean", "hostname": "string", "hostnameOverride": "string", "imagePullSecrets":
["#5e32be"], "initContainers": ["#05d605"], "nodeName": "string", "nodeSelector": {"": "string"},
"os": "#3d309c", "overhead": {"": "int-or-string"}, "preemptionPolicy": "string", "priority":
"integer", "priorityClassName": "string", "readinessGates": ["#f39761"], "resourceClaims":
["#787480"], "resources": "#bcf266", "restartPolicy": "string", "runtimeClassName": "string",
"schedulerName": "string", "schedulingGates": ["#3d309c"], "schedulingGroup": "#d05cfe",
"securityContext": "#503771", "serviceAccount": "string", "serviceAccountName": "string",
"setHostnameAsFQDN": "boolean", "shareProcessNamespace": "boolean", "subdomain": "string",
"terminationGracePeriodSeconds": "integer", "tolerations": ["#d9d423"], "topologySpreadConstraints":
["#b68007"], "volumes": ["#b29891"]}, "#e08153": {"clusterUpgradeOptions": "#7db443", "type":
"string"}, "#ea2c30": {"fsType": "string", "storagePolicyID": "string", "storagePolicyName":
"string", "volumePath*": "string"}, "#ecfdc5": {"applicationStatuses": {"": "#f4b10e"},
"lastTrafficMigratedTime": "string", "rayClusterName": "string", "rayClusterStatus": "#bc8d05",
"targetCapacity": "integer", "trafficRoutedPercent": "integer"}, "#f39761": {"conditionType*":
"string"}, "#f40a99": {"enableIngress": "boolean", "headService": "#89ddaf", "ingressOptions":
"#c75a91", "labels": {"": "string"}, "rayStartParams": {"": "string"}, "resources": {"": "string"},
"serviceType": "string", "template*": "#a9ac5a"}, "#f4b10e": {"message": "string",
"serveDeploymentStatuses": {"": "#d70e0f"}, "status": "string"}, "#f93c28": {"name*": "string",
"value*": "string"}, "#f9b45c": {"defaultMode": "integer", "sources": ["#4867ae"]}, "#fa321e":
{"matchExpressions": ["#dcbe2d"], "matchFields": ["#dcbe2d"]}, "#fb564f": {"pullPolicy": "string",
"reference": "string"}, "#fcaa84": {"nameservers": ["string"], "options": ["#dd4afe"], "searches":
["string"]}, "#fcca6a": {"defaultMode": "integer", "items": ["#a942c0"], "name": "string",
"optional": "boolean"}, "#ff556b": {"collectorOptions": "#016ee3"}}
"""
OBJECTS: dict[str, dict] = json.loads(TEXT.replace("\n", " "))
