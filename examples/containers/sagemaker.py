"""Deploys a model.tar.gz on SageMaker with tensorserve's image in place of AWS's TensorFlow image.

python examples/containers/sagemaker.py NAME IMAGE s3://BUCKET/model.tar.gz arn:aws:iam::…:role/…

IMAGE is in Amazon ECR. SageMaker starts it with the argument `serve`.
"""

import sys

import boto3


def deploy(client, name, image, model_data, role):
    container = {
        "Image": image,
        "ModelDataUrl": model_data,
        # As with AWS's image.
        "Environment": {"SAGEMAKER_TFS_ENABLE_BATCHING": "true"},
    }
    variant = {
        "VariantName": "all",
        "ModelName": name,
        "InstanceType": "ml.m5.large",
        "InitialInstanceCount": 1,
    }
    client.create_model(ModelName=name, PrimaryContainer=container, ExecutionRoleArn=role)
    client.create_endpoint_config(EndpointConfigName=name, ProductionVariants=[variant])
    client.create_endpoint(EndpointName=name, EndpointConfigName=name)
    client.get_waiter("endpoint_in_service").wait(EndpointName=name)


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__.strip())
    deploy(boto3.client("sagemaker"), *sys.argv[1:])
